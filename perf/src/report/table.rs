//! Tables for people, said once: a column is its title, its width, and what it takes of a row.

/// A column. A negative width is for texts, which begin at its left; 0 is for the last one, which is as wide as it is.
pub struct Column<R> {
    pub title: &'static str,
    pub width: isize,
    pub cell: fn(&R) -> String,
}

/// A column in a few characters, for lists of them.
pub const fn column<R>(title: &'static str, width: isize, cell: fn(&R) -> String) -> Column<R> {
    Column { title, width, cell }
}

/// A table of rows `R`.
pub struct Table<R: 'static>(pub &'static [Column<R>]);

impl<R> Table<R> {
    pub fn head(&self) -> String {
        self.line(|column| column.title.to_owned())
    }

    pub fn row(&self, row: &R) -> String {
        self.line(|column| (column.cell)(row))
    }

    /// Head and rows, a line each.
    pub fn text<'a>(&self, rows: impl IntoIterator<Item = &'a R>) -> String {
        rows.into_iter().fold(self.head() + "\n", |text, row| text + &self.row(row) + "\n")
    }

    /// The same in Markdown.
    pub fn markdown<'a>(&self, rows: impl IntoIterator<Item = &'a R>) -> String {
        let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
        let head = line(&self.titles()) + "|" + &"---|".repeat(self.0.len()) + "\n";
        let cells = rows.into_iter().map(|row| self.cells(row));
        cells.fold(head, |text, cells| text + &line(&cells.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// The titles, and the cells of a row, for a page.
    pub fn titles(&self) -> Vec<&'static str> {
        self.0.iter().map(|column| column.title).collect()
    }

    pub fn cells(&self, row: &R) -> Vec<String> {
        self.0.iter().map(|column| (column.cell)(row)).collect()
    }

    fn line(&self, cell: impl Fn(&Column<R>) -> String) -> String {
        let cells = self.0.iter().map(|column| {
            let width = column.width.unsigned_abs();
            let cell = cell(column);
            if column.width < 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    }
}

/// A number with so many digits behind the point, or a dash for none.
pub fn number(value: impl Into<Option<f64>>, digits: usize) -> String {
    match value.into().filter(|value| value.is_finite()) {
        Some(value) => format!("{value:.digits$}"),
        None => "-".into(),
    }
}

/// A share in percent.
pub fn percent(share: f64, digits: usize) -> String {
    format!("{}%", number(share * 100.0, digits))
}

/// Counts by name, or that there are none.
pub fn by_name(counts: &std::collections::BTreeMap<String, u64>) -> String {
    match counts.is_empty() {
        true => "none".into(),
        false => counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_rows_stand_below_each_other() {
        const TABLE: Table<(u32, f64)> = Table(&[
            column("name", -6, |_| "a".into()),
            column("count", 7, |row| row.0.to_string()),
            column("share", 6, |row| percent(row.1, 1)),
            column("note", 0, |row| number(row.1, 2)),
        ]);
        assert_eq!(
            TABLE.text(&[(12, 0.5), (3, f64::NAN)]),
            "name     count  share note\na           12  50.0% 0.50\na            3     -% -\n"
        );
        let markdown = "| name | count | share | note |\n|---|---|---|---|\n| a | 12 | 50.0% | 0.50 |\n";
        assert_eq!(TABLE.markdown(&[(12, 0.5)]), markdown);
    }
}
