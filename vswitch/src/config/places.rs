//! Where in the text each value of a config is.
//!
//! The config's types are plain: this index beside them maps a path such as `vnic[2].mac` to its place, so
//! that checks made on plain values can still point at line and column.

use std::collections::HashMap;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::error::ConfigError;

/// The places of all values of one text.
#[derive(Clone, Debug, Default)]
pub struct Places {
    origin: String,
    line_starts: Vec<usize>,
    text: String,
    starts: HashMap<String, usize>,
    lists: Lists,
}

/// Of lists by their paths, such as `vpc[3].routes`, which object of the same list of another config each object is, if it is one of those.
pub type Lists = HashMap<String, Vec<Option<usize>>>;

impl Places {
    /// An index of `text` with no values in it yet.
    pub fn new(text: &str, origin: &str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self {
            origin: origin.to_owned(),
            line_starts: std::iter::once(0).chain(newlines).collect(),
            text: text.to_owned(),
            starts: HashMap::new(),
            lists: Lists::new(),
        }
    }

    /// The same places for a config that has other objects than the text, or in another order: which of the text's each one is.
    pub fn of_config(self, lists: Lists) -> Self {
        Self { lists, ..self }
    }

    /// Enters all values of a document.
    pub fn enter(&mut self, document: &DeTable<'_>) {
        self.enter_table("", document);
    }

    fn enter_table(&mut self, path: &str, table: &DeTable<'_>) {
        for (key, value) in table.iter() {
            let path = match path {
                "" => key.get_ref().to_string(),
                _ => format!("{path}.{}", key.get_ref()),
            };
            self.enter_value(path, value.get_ref(), value.span());
        }
    }

    fn enter_value(&mut self, path: String, value: &DeValue<'_>, span: Range<usize>) {
        if let Some(table) = value.as_table() {
            self.enter_table(&path, table);
        }
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            self.enter_value(format!("{path}[{index}]"), item.get_ref(), item.span());
        }
        self.starts.insert(path, span.start);
    }

    /// Line and column, from 1, of a byte of the text. Columns count characters.
    pub fn line_column(&self, at: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= at).max(1);
        let start = self.line_starts.get(line - 1).copied().unwrap_or(0);
        let before = self.text.get(start..at.min(self.text.len())).unwrap_or("");
        (line, before.chars().count() + 1)
    }

    /// The place of the value at `path`, or of the nearest thing around it; none of an object that is not in the text.
    pub fn find(&self, path: &str) -> Option<(usize, usize)> {
        let path = self.in_text(path)?;
        let mut path = path.as_str();
        loop {
            if let Some(at) = self.starts.get(path) {
                return Some(self.line_column(*at));
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// The path that a value has in the text.
    fn in_text(&self, path: &str) -> Option<String> {
        let (mut told, mut read) = (String::new(), 0);
        while let Some((before, rest)) = path[read..].split_once('[') {
            let (number, _) = rest.split_once(']')?;
            let at = read + before.len();
            let number = match self.lists.get(&path[..at]) {
                Some(objects) => (*objects.get(number.parse::<usize>().ok()?)?)?.to_string(),
                None => number.to_owned(),
            };
            told.extend([before, "[", &number, "]"]);
            read = at + path[at..].find(']')? + 1;
        }
        Some(told + &path[read..])
    }

    /// An error about the value at `path`.
    pub fn error(&self, path: &str, message: String) -> ConfigError {
        ConfigError { origin: self.origin.clone(), place: self.find(path), path: path.to_owned(), message }
    }

    /// An error about a byte of the text.
    pub fn error_at(&self, at: Option<usize>, message: String) -> ConfigError {
        let place = at.map(|at| self.line_column(at));
        ConfigError { origin: self.origin.clone(), place, path: String::new(), message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_lines_and_columns() {
        let text = "[a]\nb = 1\nc = { \"\u{e4}\" = [1, 2] }\n[[d]]\nx = 1\n\n[[d]]\nx = 2";
        let document = DeTable::parse(text).unwrap();
        let mut places = Places::new(text, "f");
        places.enter(document.get_ref());
        assert_eq!(places.find("a.b"), Some((2, 5)));
        assert_eq!(places.find("a.c.\u{e4}[1]"), Some((3, 17)));
        assert_eq!(places.find("d[1].x"), Some((8, 5)));
        assert_eq!(places.find("d[1].nothing"), Some((7, 1)));
        assert_eq!(places.find("nowhere"), None);
        assert_eq!(Places::default().find("a.b"), None);
        assert_eq!(places.line_column(1_000_000), (8, 6));
    }

    #[test]
    fn objects_of_a_config_have_the_places_that_they_have_in_the_text() {
        let text = "[[d]]\nx = 1\ny = [1,\n2,\n3]\n[[d]]\nx = 2\ny = [4,\n5]";
        let document = DeTable::parse(text).unwrap();
        let mut places = Places::new(text, "f");
        places.enter(document.get_ref());
        // The second one, with its numbers turned round and one more, and another one.
        let lists = [("d", vec![Some(1), None]), ("d[0].y", vec![Some(1), None, Some(0)])];
        let places = places.of_config(lists.map(|(path, objects)| (path.to_owned(), objects)).into());
        assert_eq!(places.find("d[0].x"), Some((7, 5)));
        assert_eq!(places.find("d[0].z"), Some((6, 1)));
        assert_eq!((places.find("d[0].y[0]"), places.find("d[0].y[2]")), (Some((9, 1)), Some((8, 6))));
        for nowhere in ["d[0].y[1]", "d[0].y[3]", "d[1].x", "d[1]", "d[2]", "d[name=a].x", "d[0"] {
            assert_eq!(places.find(nowhere), None, "{nowhere}");
        }
    }
}
