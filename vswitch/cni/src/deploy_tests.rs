//! The manifests of `deploy/kubernetes`: each document is read as what the API of Kubernetes has it to be, and must be the same when it is
//! written again, so that no key is there that nobody knows and none is missing that must be there. The networks in them are read as the
//! plugin reads them, and what names something else names what is there.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::NetworkConfig;

const FILES: [(&str, &str); 2] = [
    ("daemonset.yaml", include_str!("../../../deploy/kubernetes/daemonset.yaml")),
    ("multus.yaml", include_str!("../../../deploy/kubernetes/multus.yaml")),
];
/// The annotation by which a pod has networks of Multus.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// As the custom resource definition of the Network Plumbing Working Group has it, which Multus installs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NetworkAttachmentDefinition {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    spec: NetworkAttachmentDefinitionSpec,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkAttachmentDefinitionSpec {
    config: String,
}

/// A network that a pod asks for: `NetworkSelectionElement` of Multus, as far as the manifests use it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "what is read is there")]
struct Selection {
    name: String,
    namespace: Option<String>,
    interface: Option<String>,
    mac: Option<String>,
    #[serde(default)]
    ips: Vec<String>,
}

/// A network configuration list of the CNI specification.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NetworkList {
    cni_version: String,
    name: String,
    plugins: Vec<Value>,
}

/// All documents of all files.
fn documents() -> Vec<Value> {
    let of = |(name, text): (&str, &str)| {
        serde_saphyr::from_multiple::<Value>(text).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    FILES.into_iter().flat_map(of).collect()
}

/// A document as one of a type; nothing of it is lost or comes besides.
fn read<T: DeserializeOwned + Serialize>(document: &Value) -> Result<T, String> {
    let object = T::deserialize(document).map_err(|error| error.to_string())?;
    let again = serde_json::to_value(&object).map_err(|error| error.to_string())?;
    same("", document, &again)?;
    Ok(object)
}

fn same(path: &str, written: &Value, read: &Value) -> Result<(), String> {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => {
            let keys: BTreeSet<_> = written.keys().chain(read.keys()).collect();
            keys.into_iter().try_for_each(|key| {
                let path = format!("{path}.{key}");
                match (written.get(key), read.get(key)) {
                    (Some(written), Some(read)) => same(&path, written, read),
                    (Some(_), None) => Err(format!("{path} is no field of Kubernetes")),
                    (None, _) => Err(format!("{path} is missing")),
                }
            })
        }
        (Value::Array(written), Value::Array(read)) if written.len() == read.len() => {
            let pairs = written.iter().zip(read).enumerate();
            pairs
                .into_iter()
                .try_for_each(|(at, (written, read))| same(&format!("{path}[{at}]"), written, read))
        }
        _ if written == read => Ok(()),
        _ => Err(format!("{path} is {written}, which is read as {read}")),
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// A name of an object: a DNS subdomain (RFC 1123).
fn name(metadata: &ObjectMeta) -> Result<&str, String> {
    let name = metadata.name.as_deref().unwrap_or_default();
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let is_name = !name.is_empty() && name.len() < 254 && name.chars().all(good);
    ensure(is_name, || format!("{name:?} is no name of an object"))?;
    Ok(name)
}

/// A network as the plugin gets it, and its name.
fn network(config: &Value) -> Result<String, String> {
    let config = NetworkConfig::read(config.to_string().as_bytes()).map_err(|error| format!("{error:?}"))?;
    ensure(config._kind == env!("CARGO_PKG_NAME"), || format!("type {:?} is not the plugin", config._kind))?;
    Ok(config.name)
}

/// The networks of a list, each as the runtime gives it to the plugin.
fn networks(list: &str) -> Result<(), String> {
    let list: NetworkList = serde_json::from_str(list).map_err(|error| error.to_string())?;
    ensure(!list.plugins.is_empty(), || "no plugin".to_owned())?;
    list.plugins.into_iter().try_for_each(|mut plugin| {
        plugin["cniVersion"] = json!(list.cni_version);
        plugin["name"] = json!(list.name);
        network(&plugin).map(drop)
    })
}

/// What of containers and their volumes no schema says.
fn check_pod(pod: &PodSpec, maps: &BTreeMap<String, ConfigMap>) -> Result<(), String> {
    let mut volumes = BTreeSet::new();
    for volume in pod.volumes.iter().flatten() {
        ensure(volumes.insert(&volume.name), || format!("two volumes {:?}", volume.name))?;
        let map = volume.config_map.as_ref().map(|map| map.name.as_str());
        ensure(map.is_none_or(|map| maps.contains_key(map)), || format!("there is no ConfigMap {map:?}"))?;
        let host_path = volume.host_path.as_ref();
        ensure(map.is_some() || host_path.is_some(), || format!("volume {:?} is nothing", volume.name))?;
        let kind = host_path.and_then(|path| path.type_.as_deref());
        let known =
            kind.is_none_or(|kind| ["Directory", "DirectoryOrCreate", "File", "Socket"].contains(&kind));
        ensure(known, || format!("{kind:?} is no type of a path of the host"))?;
    }
    for toleration in pod.tolerations.iter().flatten() {
        let operator = toleration.operator.as_deref();
        ensure(matches!(operator, Some("Exists" | "Equal")), || format!("operator {operator:?}"))?;
    }
    let mut used = BTreeSet::new();
    let containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    for container in containers {
        let Container { name, image, resources, volume_mounts, .. } = container;
        ensure(image.as_ref().is_some_and(|image| image.contains(':')), || {
            format!("{name}: image {image:?}")
        })?;
        for mount in volume_mounts.iter().flatten() {
            ensure(volumes.contains(&mount.name), || format!("{name}: no volume {:?}", mount.name))?;
            ensure(mount.mount_path.starts_with('/'), || {
                format!("{name}: mounted at {:?}", mount.mount_path)
            })?;
            used.insert(&mount.name);
        }
        let resources = resources.iter().flat_map(|all| [&all.requests, &all.limits]).flatten().flatten();
        for (resource, Quantity(much)) in resources {
            let known = ["cpu", "memory", "ephemeral-storage"].contains(&resource.as_str());
            ensure(known && much.starts_with(|c: char| c.is_ascii_digit()), || {
                format!("{resource}: {much}")
            })?;
        }
    }
    ensure(used == volumes, || format!("of the volumes {volumes:?} only {used:?} are used"))
}

/// The script that puts the binary and the network where kubelet looks for them.
fn check_installation(set: &DaemonSet, maps: &BTreeMap<String, ConfigMap>) -> Result<(), String> {
    let spec = set.spec.as_ref().ok_or("the DaemonSet has no spec")?;
    let wanted = spec.selector.match_labels.as_ref().ok_or("the DaemonSet selects nothing")?;
    let labels = spec.template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    ensure(labels == Some(wanted), || format!("it selects {wanted:?}, and its pods have {labels:?}"))?;
    ensure(set.metadata.labels.as_ref() == Some(wanted), || "its own labels are others".to_owned())?;
    let strategy = spec.update_strategy.as_ref().and_then(|strategy| strategy.type_.as_deref());
    ensure(matches!(strategy, Some("RollingUpdate" | "OnDelete")), || format!("strategy {strategy:?}"))?;
    let pod = spec.template.spec.as_ref().ok_or("its pods have no spec")?;
    check_pod(pod, maps)?;
    ensure(pod.host_network == Some(true), || "it waits for the network that it brings".to_owned())?;
    let class = pod.priority_class_name.as_deref();
    ensure(class == Some("system-node-critical"), || format!("priority class {class:?}"))?;
    let install = pod.init_containers.iter().flatten().next().ok_or("nobody installs")?;
    let script = install.command.iter().flatten().last().ok_or("nothing is run")?;
    let folder = |volume: &str| {
        let mounts = install.volume_mounts.iter().flatten();
        mounts.filter(|mount| mount.name == volume).map(|mount| mount.mount_path.clone()).next()
    };
    let from_host = |path: &str| {
        let volumes = pod.volumes.iter().flatten();
        let mut at = volumes.filter(|volume| volume.host_path.as_ref().is_some_and(|host| host.path == path));
        at.next().and_then(|volume| folder(&volume.name)).ok_or(format!("{path} of the host is not mounted"))
    };
    let (bin, net_d) = (from_host("/opt/cni/bin")?, from_host("/etc/cni/net.d")?);
    let volumes = pod.volumes.iter().flatten();
    let maps_of = volumes.filter_map(|volume| Some((folder(&volume.name)?, volume.config_map.as_ref()?)));
    for (folder, map) in maps_of {
        let files = maps.get(&map.name).and_then(|map| map.data.as_ref()).into_iter().flatten();
        for (file, _) in files {
            let copied = format!("cp {folder}/{file} {net_d}/.{file}\nmv {net_d}/.{file} {net_d}/{file}\n");
            ensure(script.contains(&copied), || format!("{file} is not installed by: {script}"))?;
        }
    }
    let binary = env!("CARGO_PKG_NAME");
    let copied = format!("cp /{binary} {bin}/.{binary}\nmv {bin}/.{binary} {bin}/{binary}\n");
    ensure(script.starts_with(&copied), || format!("{binary} is not installed first by: {script}"))
}

/// Everything that is checked of the documents.
fn check(documents: &[Value]) -> Result<(), String> {
    let of = |document: &Value| {
        let word = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
        (word("apiVersion"), word("kind"))
    };
    let mut maps = BTreeMap::new();
    let (mut sets, mut pods, mut definitions) = (Vec::new(), Vec::new(), BTreeMap::new());
    for document in documents {
        let (version, kind) = of(document);
        match (version.as_str(), kind.as_str()) {
            ("v1", "ConfigMap") => {
                let map: ConfigMap = read(document)?;
                map.data.iter().flatten().try_for_each(|(_, list)| networks(list))?;
                ensure(map.data.iter().flatten().next().is_some(), || "an empty ConfigMap".to_owned())?;
                maps.insert(name(&map.metadata)?.to_owned(), map);
            }
            ("apps/v1", "DaemonSet") => sets.push(read::<DaemonSet>(document)?),
            ("v1", "Pod") => pods.push(read::<Pod>(document)?),
            ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition") => {
                let definition: NetworkAttachmentDefinition = read(document)?;
                let config: Value =
                    serde_json::from_str(&definition.spec.config).map_err(|error| error.to_string())?;
                let (own, name) = (network(&config)?, name(&definition.metadata)?);
                ensure(own == name, || format!("the network of {name} calls itself {own}"))?;
                definitions.insert(name.to_owned(), definition);
            }
            unknown => return Err(format!("there is no schema for {unknown:?}")),
        }
    }
    ensure((maps.len(), sets.len(), pods.len(), definitions.len()) == (1, 1, 1, 1), || "others".to_owned())?;
    for set in &sets {
        name(&set.metadata)?;
        check_installation(set, &maps)?;
        let namespaces: BTreeSet<_> =
            maps.values().map(|map| &map.metadata.namespace).chain([&set.metadata.namespace]).collect();
        let system = Some("kube-system".to_owned());
        ensure(namespaces == BTreeSet::from([&system]), || format!("namespaces {namespaces:?}"))?;
    }
    for pod in &pods {
        name(&pod.metadata)?;
        check_pod(pod.spec.as_ref().ok_or("a pod without a spec")?, &maps)?;
        let asked = pod.metadata.annotations.as_ref().and_then(|all| all.get(NETWORKS));
        let asked = asked.ok_or("the pod asks for no network")?;
        let asked: Vec<Selection> = serde_json::from_str(asked).map_err(|error| error.to_string())?;
        let known = asked.iter().all(|one| definitions.contains_key(&one.name));
        ensure(known && !asked.is_empty(), || format!("{asked:?} are not all there"))?;
    }
    Ok(())
}

#[test]
fn cni_manifests_are_what_kubernetes_takes() {
    check(&documents()).unwrap();
}

/// The paths of all values in a value, as JSON pointers have them.
fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut enter = |key: &str, value: &Value| {
        let path = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        paths(value, &path, found);
        found.push(path);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| enter(key, value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(at, value)| enter(&at.to_string(), value)),
        _ => {}
    }
}

/// The same with another key in place of that at this path; none where it is the place in a list.
fn misspelt(value: &Value, path: &str) -> Option<Value> {
    let (outside, key) = path.rsplit_once('/')?;
    let key = key.replace("~1", "/").replace("~0", "~");
    let mut value = value.clone();
    let fields = value.pointer_mut(outside)?.as_object_mut()?;
    let inside = fields.remove(&key)?;
    fields.insert(format!("{key}z"), inside);
    Some(value)
}

/// The same without what is at this path.
fn without(value: &Value, path: &str) -> Option<Value> {
    let (outside, key) = path.rsplit_once('/')?;
    let mut value = value.clone();
    value.pointer_mut(outside)?.as_object_mut()?.remove(&key.replace("~1", "/").replace("~0", "~"))?;
    Some(value)
}

/// Any key that is misspelt, and any value of another type, makes the check fail.
#[test]
fn cni_manifests_with_a_mistake_are_found() {
    let good = documents();
    let (mut keys, mut values) = (0, 0);
    for (at, document) in good.iter().enumerate() {
        let mut all = Vec::new();
        paths(document, "", &mut all);
        let with = |document: Value| {
            let mut documents = good.clone();
            documents[at] = document;
            check(&documents)
        };
        for path in &all {
            if let Some(document) = misspelt(document, path) {
                assert!(with(document).is_err(), "{path} with a z behind it is not found");
                keys += 1;
            }
            let mut other = document.clone();
            let value = other.pointer_mut(path).unwrap();
            *value = if value.is_array() { json!({ "a": 1 }) } else { json!([[1]]) };
            assert!(with(other).is_err(), "{path} of another type is not found");
            values += 1;
        }
    }
    assert!(keys > 60 && values > 70, "{keys} keys, {values} values");
    // What must be there.
    for (at, path) in [
        (1, "/spec/selector"),
        (1, "/spec/template"),
        (1, "/spec/template/spec/containers"),
        (2, "/spec/config"),
        (2, "/spec"),
        (3, "/spec"),
        (3, "/spec/containers"),
        (3, "/metadata/name"),
    ] {
        let mut documents = good.clone();
        documents[at] = without(&good[at], path).unwrap_or_else(|| panic!("{path} is not there"));
        assert!(check(&documents).is_err(), "without {path}");
    }
}

/// So does any key of the networks within, but for those that are somebody else's to read.
#[test]
fn cni_networks_in_manifests_with_a_mistake_are_found() {
    let good = documents();
    let others = ["/capabilities/", "/ipam/ranges"];
    let mut keys = 0;
    for (at, pointer) in [(0, "/data/10-vswitch.conflist"), (2, "/spec/config")] {
        let text = good[at].pointer(pointer).and_then(Value::as_str).unwrap();
        let network: Value = serde_json::from_str(text).unwrap();
        let mut all = Vec::new();
        paths(&network, "", &mut all);
        for path in all.iter().filter(|path| !others.iter().any(|other| path.contains(other))) {
            let Some(network) = misspelt(&network, path) else { continue };
            let mut documents = good.clone();
            *documents[at].pointer_mut(pointer).unwrap() = json!(network.to_string());
            assert!(check(&documents).is_err(), "{path} with a z behind it is not found");
            keys += 1;
        }
    }
    assert!(keys > 20, "{keys}");
}

/// YAML that says a key twice, and documents of kinds that nothing here knows.
#[test]
fn cni_manifests_are_read_strictly() {
    assert!(serde_saphyr::from_multiple::<Value>("a: 1\na: 2\n").is_err());
    let mut documents = documents();
    documents.push(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "x" } }));
    assert!(check(&documents).unwrap_err().contains("no schema"));
}
