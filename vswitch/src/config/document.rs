//! From TOML text to a checked config, with the place of every value.
//!
//! Reads section by section and, in lists, element by element, so that one run shows the errors of all of
//! them. The checks across sections run when each section is good in itself.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::error::{ConfigError, ConfigErrors, quote, tidy};
use super::places::Places;
use super::{Config, validate};

/// The sections a config may have.
pub const SECTIONS: &[&str] = &[
    "eal",
    "workers",
    "forward",
    "api",
    "control",
    "nft",
    "vlt",
    "vxlan",
    "rdma",
    "rcft",
    "qos",
    "security",
    "offload",
    "uplink",
    "vpc",
    "subnet",
    "security-group",
    "trunk",
    "vnic",
    "location",
    "port",
];

/// The most syntax errors shown; after the first few the parser mostly stumbles over its own recovery.
const SYNTAX_ERRORS: usize = 8;

/// A valid config together with its text's places.
#[derive(Clone, Debug)]
pub struct Document {
    /// The config.
    pub config: Config,
    /// Where its values are.
    pub places: Places,
}

impl Document {
    /// Reads and checks `text`; `origin` is the name its errors give it.
    ///
    /// # Errors
    /// Everything wrong with it, each with its place.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigErrors> {
        let document = Self::read(text, origin)?;
        validate::all(&document.config, &document.places)?;
        Ok(document)
    }

    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read or is no text, and everything wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let origin = path.display().to_string();
        let bytes = fs::read(path).map_err(|error| {
            let message = format!("cannot read the config: {error}; give its path with --config");
            ConfigErrors(vec![ConfigError {
                origin: origin.clone(),
                place: None,
                path: String::new(),
                message,
            }])
        })?;
        let text = str::from_utf8(&bytes).map_err(|error| {
            let places = Places::new(&String::from_utf8_lossy(&bytes), &origin);
            let message = "this is not UTF-8 text; a config is TOML".to_owned();
            ConfigErrors(vec![places.error_at(Some(error.valid_up_to()), message)])
        })?;
        Self::parse(text, &origin)
    }

    /// Reads `text`: each section is good in itself, and the whole is not checked yet.
    pub(crate) fn read(text: &str, origin: &str) -> Result<Self, ConfigErrors> {
        let mut places = Places::new(text, origin);
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let at = |e: &toml::de::Error| e.span().map(|span| span.start);
            let errors = errors.iter().map(|e| places.error_at(at(e), tidy(e.message())));
            return Err(ConfigErrors(errors.take(SYNTAX_ERRORS).collect()));
        }
        places.enter(table.get_ref());
        let mut reader = SectionReader { table: table.into_inner(), places: &places, errors: Vec::new() };
        let config = Config {
            eal: reader.section("eal"),
            workers: reader.section("workers"),
            forward: reader.section("forward"),
            api: reader.section("api"),
            control: reader.section("control"),
            nft: reader.section("nft"),
            vlt: reader.section("vlt"),
            vxlan: reader.section("vxlan"),
            rdma: reader.section("rdma"),
            rcft: reader.section("rcft"),
            qos: reader.section("qos"),
            security: reader.section("security"),
            offload: reader.section("offload"),
            uplinks: reader.list("uplink"),
            vpcs: reader.list("vpc"),
            subnets: reader.list("subnet"),
            security_groups: reader.list("security-group"),
            trunks: reader.list("trunk"),
            vnics: reader.list("vnic").into_iter().map(Arc::new).collect(),
            locations: reader.list("location"),
            ports: reader.list("port"),
        };
        reader.refuse_the_rest();
        let mut errors = reader.errors;
        if errors.is_empty() {
            return Ok(Self { config, places });
        }
        errors.sort_by_key(|error| error.place);
        Err(ConfigErrors(errors))
    }

    /// Checks the workers' cores against those this process may run on.
    ///
    /// # Errors
    /// Each core that is not among `available`.
    pub fn check_cores(&self, available: &[usize]) -> Result<(), ConfigErrors> {
        validate::cores(&self.config, &self.places, available)
    }
}

/// Takes sections out of the document and remembers what was wrong with them.
struct SectionReader<'t, 'p> {
    table: DeTable<'t>,
    places: &'p Places,
    errors: Vec<ConfigError>,
}

impl<'t> SectionReader<'t, '_> {
    fn section<T: DeserializeOwned + Default>(&mut self, name: &str) -> T {
        let Some(value) = self.table.remove(name) else { return T::default() };
        if value.get_ref().is_array() {
            let message = format!("there is one {name} only; write [{name}], not [[{name}]]");
            self.errors.push(self.places.error(name, message));
            return T::default();
        }
        self.read(value).unwrap_or_default()
    }

    fn list<T: DeserializeOwned>(&mut self, name: &str) -> Vec<T> {
        let Some(value) = self.table.remove(name) else { return Vec::new() };
        let DeValue::Array(elements) = value.into_inner() else {
            let message = format!("{name} is a list; write [[{name}]], not [{name}]");
            self.errors.push(self.places.error(name, message));
            return Vec::new();
        };
        elements.into_iter().filter_map(|element| self.read(element)).collect()
    }

    fn read<T: DeserializeOwned>(&mut self, value: Spanned<DeValue<'t>>) -> Option<T> {
        let whole = value.span().start;
        match T::deserialize(ValueDeserializer::from(kind_first(value))) {
            Ok(value) => Some(value),
            Err(error) => {
                let at = error.span().map_or(whole, |span| span.start);
                self.errors.push(self.places.error_at(Some(at), tidy(error.message())));
                None
            }
        }
    }

    fn refuse_the_rest(&mut self) {
        for (key, _) in &self.table {
            let message =
                format!("unknown section {}; the sections are {}", quote(key.get_ref()), SECTIONS.join(", "));
            self.errors.push(self.places.error_at(Some(key.span().start), message));
        }
    }
}

/// The same value with the key `kind` first in each table, so that what depends on it can be read in one go
/// and errors keep their places.
fn kind_first(value: Spanned<DeValue<'_>>) -> Spanned<DeValue<'_>> {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::Table(mut table) => {
            let kind = table.remove_entry("kind");
            let rest = table.into_iter().map(|(key, value)| (key, kind_first(value)));
            DeValue::Table(kind.into_iter().chain(rest).collect())
        }
        DeValue::Array(items) => DeValue::Array(items.into_iter().map(kind_first).collect()),
        scalar => scalar,
    };
    Spanned::new(span, value)
}
