//! Text tables with aligned columns.

use std::fmt;

/// A table under construction; `Display` prints it. Columns in which every cell is a number stand right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: usize,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with column heads.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        let head: Vec<String> = head.into_iter().map(Into::into).collect();
        Self { columns: head.len(), head, rows: Vec::new() }
    }

    /// A table of so many columns without heads.
    pub fn bare(columns: usize) -> Self {
        Self { columns, head: Vec::new(), rows: Vec::new() }
    }

    /// Adds a row; cells that are missing are empty, cells too many are left out.
    pub fn row<S: ToString>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Self {
        let mut row: Vec<String> =
            cells.into_iter().take(self.columns).map(|cell| clean(&cell.to_string())).collect();
        row.resize(self.columns, String::new());
        self.rows.push(row);
        self
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, cells: &[String], columns: &[(usize, bool)]) -> fmt::Result {
        let mut line = String::new();
        for (cell, (width, right)) in cells.iter().zip(columns) {
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            if *right {
                line += &format!("{pad}{cell}  ");
            } else {
                line += &format!("{cell}{pad}  ");
            }
        }
        writeln!(f, "{}", line.trim_end())
    }
}

/// Text that a terminal shows and does not obey, whoever wrote it: lines and tabs stay, other control characters do not.
pub fn printable(text: &str) -> String {
    let one = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    text.chars().map(one).collect()
}

/// A cell has one line and no control characters.
fn clean(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Digits, with separators and at most a percent sign.
fn is_number(cell: &str) -> bool {
    let digits = cell.trim_start_matches('-').trim_end_matches('%');
    digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_digit() || c == '.' || c == ',')
        && digits.matches('.').count() <= 1
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<(usize, bool)> = (0..self.columns)
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].as_str());
                let head = self.head.get(column).map_or(0, |head| head.chars().count());
                let width = cells.clone().map(|cell| cell.chars().count()).max().unwrap_or(0).max(head);
                let filled = || cells.clone().filter(|cell| !cell.is_empty() && *cell != "-");
                (width, filled().next().is_some() && filled().all(is_number))
            })
            .collect();
        if !self.head.is_empty() {
            self.line(f, &self.head, &columns)?;
        }
        self.rows.iter().try_for_each(|row| self.line(f, row, &columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["port", "packets", "state"]);
        table.row(["up0", "12", "up"]).row(["a-longer-name", "12345", "down"]).row(["x", "-"]);
        assert_eq!(
            table.to_string(),
            "port           packets  state\n\
             up0                 12  up\n\
             a-longer-name    12345  down\n\
             x                    -\n"
        );
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn addresses_are_no_numbers_and_cells_are_one_line() {
        let mut table = Table::bare(2);
        table.row(["10.0.0.1", "a\nb"]).row(["1", "c"]);
        assert_eq!(table.to_string(), "10.0.0.1  a b\n1         c\n");
        assert!(is_number("12.5%") && is_number("-3") && !is_number("1.2.3") && !is_number(""));
    }
}
