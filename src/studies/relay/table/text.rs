//! The tables of a run as plain text.

use std::fmt::{self, Display, Formatter};

use super::{FormatSummary, HopSummary, Summary};
use crate::terminal::plain;

/// Stands where a measure does not exist.
const NONE: &str = "–";

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let hops = self.formats.first().map_or(0, |(_, format)| format.hops.len());
        writeln!(
            f,
            "{}: {} on {} ({})",
            plain(&self.run),
            plain(&self.model),
            plain(&self.device),
            plain(self.isa.as_deref().unwrap_or("no kernels of its own"))
        )?;
        let shape = [counted(self.items, "item"), counted(self.formats.len(), "format"), counted(hops, "hop")];
        writeln!(f, "{}; {}\n", shape.join(", "), self.settings)?;

        writeln!(f, "Facts kept, % of all facts by string recall [95 % interval over items]")?;
        let mut rows = vec![vec!["format".to_owned()]];
        rows[0].extend((1..=hops).map(|hop| format!("hop {hop}")));
        for (name, format) in &self.formats {
            rows.push(std::iter::once(plain(name)).chain(format.hops.iter().map(recall)).collect());
        }
        grid(f, &rows)?;
        if self.items < 2 {
            writeln!(f, "No intervals: one item says nothing about others.")?;
        } else if self.formats.iter().flat_map(|(_, format)| &format.hops).any(|hop| hop.n > 1 && hop.ci.is_none()) {
            writeln!(f, "No interval where all items kept the same share.")?;
        }

        writeln!(
            f,
            "\nToll (lost at hop 1), drift (lost from hop 1 to {hops}), retention (of the facts right at hop 1), bound recall at hop {hops}, all in %"
        )?;
        let titles = [
            "format",
            "toll",
            "drift",
            "retention",
            "bound",
            "truncated",
            "invalid",
            "tokens",
            "tokens/s",
            "tokens/fact",
        ];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        rows.extend(self.formats.iter().map(|(name, format)| measures(name, format)));
        grid(f, &rows)?;

        let cached = 100 * self.cached_tokens / self.prompt_tokens.max(1);
        writeln!(
            f,
            "\n{:.1} s, {} prompt tokens ({cached} % from the cache), {} generated ({} a second, formats side by side)",
            self.seconds,
            self.prompt_tokens,
            self.generated_tokens,
            number((self.seconds > 0.0).then(|| self.generated_tokens as f64 / self.seconds))
        )?;
        if self.failed > 0 {
            writeln!(f, "{} failed: not scored, not in any mean", counted(self.failed, "chain"))?;
        }
        if self.unfinished > 0 {
            writeln!(f, "{} unfinished: weaklink resume {}", counted(self.unfinished, "chain"), plain(&self.run))?;
        }
        Ok(())
    }
}

fn recall(hop: &HopSummary) -> String {
    let interval = hop.ci.map_or(String::new(), |[low, high]| format!(" [{:.0}–{:.0}]", 100.0 * low, 100.0 * high));
    percent(hop.string_recall) + &interval
}

fn measures(name: &str, format: &FormatSummary) -> Vec<String> {
    let messages: usize = format.hops.iter().map(|hop| hop.n).sum();
    let of_all = |count: usize| if messages == 0 { NONE.into() } else { format!("{count}/{messages}") };
    let tokens = format.hops.iter().filter_map(|hop| Some(hop.tokens? * hop.n as f64)).sum::<f64>();
    vec![
        plain(name),
        percent(format.toll),
        percent(format.drift),
        percent(format.retention),
        percent(format.hops.last().and_then(|hop| hop.bound_recall)),
        of_all(format.hops.iter().map(|hop| hop.truncated).sum()),
        of_all(format.hops.iter().map(|hop| hop.invalid).sum()),
        number((messages > 0).then_some(tokens / messages as f64)),
        number(format.tokens_per_second),
        number(format.tokens_per_fact),
    ]
}

fn percent(share: Option<f64>) -> String {
    number(share.map(|share| 100.0 * share))
}

fn number(value: Option<f64>) -> String {
    // Adding 0.0 turns the negative zero of a drift into zero.
    value.map_or(NONE.into(), |value| format!("{:.1}", value + 0.0))
}

/// `1 item`, `2 items`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Characters of a cell that are shown: a user's own names may be of any length.
const CELL: usize = 200;

/// Writes rows in columns: the first to the left, the others to the right.
pub(crate) fn grid(f: &mut impl fmt::Write, rows: &[Vec<String>]) -> fmt::Result {
    let shortened = |cell: &String| match cell.char_indices().nth(CELL) {
        Some(_) => cell.chars().take(CELL - 1).chain(['…']).collect(),
        None => cell.clone(),
    };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(shortened).collect()).collect();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..).map_while(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        let padded = cells.map(
            |(column, (cell, &width))| {
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            },
        );
        writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_rows_may_be_short() {
        let row = |cells: &[&str]| cells.iter().map(|cell| cell.to_string()).collect::<Vec<_>>();
        let mut text = String::new();
        grid(&mut text, &[row(&["a", "bbbb", "c"]), row(&["ünter", "–", "10"]), row(&["x"]), row(&[])])
            .expect("writing to a string");
        assert_eq!(text, "a      bbbb   c\nünter     –  10\nx\n\n");
        // Names are the user's: one of any length must not break the table.
        let mut text = String::new();
        grid(&mut text, &[row(&[&"é".repeat(100_000), "1"]), row(&["a", "2"])]).expect("writing to a string");
        let widths: Vec<_> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths, [CELL + 3, CELL + 3]);
    }

    #[test]
    fn numbers_that_do_not_exist_are_a_dash_and_zero_has_no_sign() {
        assert_eq!([number(None), number(Some(-0.0)), percent(Some(0.5))], ["–", "0.0", "50.0"]);
        assert_eq!([counted(1, "item"), counted(0, "item")], ["1 item", "0 items"]);
    }
}
