//! The template tables of a flow queue: found by the shape of a rule, made when there is none with room.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

use dpdk_sys as sys;
use rules::{FlowError, FlowRule};

use super::lower::Lowered;
use super::template::{Shape, Table};

/// A table, by its place among those of its queue.
pub(super) type TableNumber = usize;

#[derive(Debug)]
struct Filled {
    table: Table,
    /// Rules in it, or on their way in or out.
    rules: u32,
}

/// The tables of a flow queue.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Shapes and their tables, by the shape's hash.
    by_shape: HashMap<u64, Vec<(Shape, Vec<TableNumber>)>>,
    all: Vec<Filled>,
}

impl Tables {
    /// A table with room for a rule, which comes into it by [`occupy`](Self::occupy). `room` is for how many rules one is
    /// made.
    ///
    /// # Errors
    /// The driver's, when there is none and none can be made.
    pub(super) fn find(
        &mut self,
        port: u16,
        rule: &FlowRule,
        lowered: &Lowered,
        room: u32,
    ) -> Result<TableNumber, FlowError> {
        let mut hasher = DefaultHasher::new();
        Shape::hash(rule, &mut hasher);
        let alike = self.by_shape.entry(hasher.finish()).or_default();
        let at = match alike.iter().position(|(shape, _)| shape.is_of(rule)) {
            Some(at) => at,
            None => {
                alike.push((Shape::of(rule)?, Vec::new()));
                alike.len() - 1
            }
        };
        let (shape, tables) = &mut alike[at];
        // The newest is the one with room, until older ones are emptied.
        let has_room = |table: &&TableNumber| self.all[**table].rules < room;
        if let Some(table) = tables.iter().rev().find(has_room) {
            return Ok(*table);
        }
        let table = Table::new(port, shape, lowered, room)?;
        self.all.push(Filled { table, rules: 0 });
        tables.push(self.all.len() - 1);
        Ok(self.all.len() - 1)
    }

    /// A rule is in this table from now on, or on its way there.
    pub(super) fn occupy(&mut self, table: TableNumber) {
        if let Some(table) = self.all.get_mut(table) {
            table.rules += 1;
        }
    }

    /// A rule is in this table no more.
    pub(super) fn leave(&mut self, table: TableNumber) {
        if let Some(table) = self.all.get_mut(table) {
            table.rules = table.rules.saturating_sub(1);
        }
    }

    pub(super) fn raw(&self, table: TableNumber) -> *mut sys::rte_flow_template_table {
        self.all[table].table.raw()
    }

    /// Gives all of them back; those with rules in them are left, with a warning.
    pub(super) fn delete(&mut self, port: u16) {
        self.by_shape.clear();
        for Filled { table, rules } in std::mem::take(&mut self.all) {
            if rules > 0 {
                tracing::warn!(port, rules, "a template table with rules was left");
                continue;
            }
            table.delete(port);
        }
    }
}
