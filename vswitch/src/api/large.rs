//! Changes of very many objects: what they cost grows with them, and not with what there is for each of them.

use std::time::{Duration, Instant};

use tonic::Code;
use vswitch_api::v1::{self, object::Spec, operation::Operation};

use super::current::View;
use super::objects::{OPERATIONS, steps};
use super::plan::Plan;
use super::{Followed, follow};
use crate::state::owners::Owner;
use crate::switch::testing;

const NETWORKS: &str = "[[vpc]]\nname = \"red\"\nvni = 100\n[[security-group]]\nname = \"web\"\nvpc = \"red\"\n[forward]\nauto-start = false\n";

fn subnet(number: usize) -> v1::Object {
    let prefix = format!("10.{}.{}.0/24", number / 256, number % 256);
    object(Spec::Subnet(v1::Subnet { vpc: "red".into(), prefix, ..v1::Subnet::default() }))
}

fn object(spec: Spec) -> v1::Object {
    v1::Object { spec: Some(spec) }
}

fn create(object: v1::Object) -> v1::Operation {
    let create = v1::CreateRequest { object: Some(object), ..v1::CreateRequest::default() };
    v1::Operation { operation: Some(Operation::Create(create)) }
}

/// The time of the fastest of a few attempts.
fn fastest(mut work: impl FnMut()) -> Duration {
    let mut one = || {
        let begun = Instant::now();
        work();
        begun.elapsed()
    };
    (0..3).map(|_| one()).min().unwrap()
}

/// Four times as much takes as much longer; of a square it would be sixteen times.
#[track_caller]
fn assert_linear(few: Duration, many: Duration) {
    eprintln!("{few:?}, {many:?}");
    assert!(many < few * 9, "{few:?}, and four times as many {many:?}");
}

#[test]
fn planning_thousands_of_objects_costs_as_much_as_they_are() {
    let mut switch = testing::start(NETWORKS);
    let view = View::of(&switch);
    let planned = |count: usize| {
        fastest(|| {
            let operations = (0..count).map(subnet).map(create).collect();
            let (plan, items) = Plan::of(&view, steps(operations).unwrap()).unwrap();
            assert_eq!((plan.config.subnets.len(), items.len()), (count, count));
        })
    };
    assert_linear(planned(OPERATIONS / 4), planned(OPERATIONS));
    switch.stop();
}

/// At the start of a switch all that etcd has is due, and most of it is there already.
#[test]
fn etcd_objects_that_are_there_already_are_looked_up_at_the_cost_of_one_each() {
    let mut switch = testing::start(NETWORKS);
    let rule = |number: usize| {
        let rule = v1::SecurityRule {
            direction: v1::RuleDirection::In.into(),
            protocol: Some("tcp".into()),
            ports: Some((number + 1).to_string()),
            ..v1::SecurityRule::default()
        };
        object(Spec::Rule(v1::Rule { of: "web".into(), rule: Some(rule) }))
    };
    let mut followed = |count: usize| {
        let changes: Vec<Followed> = (0..count).map(rule).map(|rule| Followed::Is(Box::new(rule))).collect();
        let begun = Instant::now();
        follow(&mut switch, Owner::Etcd, &changes).unwrap();
        eprintln!("{count} that come: {:?}", begun.elapsed());
        fastest(|| follow(&mut switch, Owner::Etcd, &changes).unwrap())
    };
    let (few, many) = (followed(1000), followed(4000));
    assert_linear(few, many);
    switch.stop();
}

#[test]
fn a_batch_of_too_many_operations_is_refused_before_control_hears_of_it() {
    let batch = |count: usize| steps((0..count).map(subnet).map(create).collect());
    assert!(batch(OPERATIONS).is_ok());
    let problem = batch(OPERATIONS + 1).err().unwrap();
    assert_eq!((problem.code, problem.field.as_str()), (Code::ResourceExhausted, "operations"));
    assert!(problem.message.contains("split it"), "{problem:?}");
}
