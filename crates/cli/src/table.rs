//! Tables for people: a left-aligned label, right-aligned numbers, a note on where each comes from.

use std::fmt::Write;

/// Rows of cells; columns are as wide as their widest cell.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    left: Vec<bool>,
}

impl Table {
    /// A table whose columns are left-aligned (`l`) or right-aligned (`r`), e.g. `lrl`.
    pub fn new(columns: &str) -> Table {
        Table {
            rows: Vec::new(),
            left: columns.chars().map(|c| c == 'l').collect(),
        }
    }

    /// Adds a row; missing cells are empty.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Self {
        self.rows.push(cells.into_iter().map(Into::into).collect());
        self
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.left.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, &width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                match self.left[column] {
                    true => write!(line, "{cell:<width$}  ")?,
                    false => write!(line, "{cell:>width$}  ")?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new("lrl");
        table
            .row(["budget", "512 MiB", "given"])
            .row(["peak of the plan", "9 MiB"]);
        assert_eq!(
            table.to_string(),
            "budget            512 MiB  given\npeak of the plan    9 MiB\n"
        );
    }
}
