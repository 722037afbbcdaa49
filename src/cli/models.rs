//! `weaklink models`: the cards built into the program.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use weaklink_models::card::{Card, CardKind, CardSource, DEFAULT_CARD};
use weaklink_models::fetch::{FetchOptions, Fetcher};

use super::output::emit;

/// List the models that can be named by a card: size, licence, cached or not
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  weaklink models\n  weaklink models --json | jq -r '.models[] | select(.cached) | .path'"
)]
pub(crate) struct ModelsArgs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listing<'a> {
    cache: Option<PathBuf>,
    default: &'static str,
    models: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    family: &'a str,
    kind: CardKind,
    parameters: &'a str,
    quantization: &'a str,
    size: u64,
    context: u32,
    licence: &'a str,
    note: &'a str,
    cached: bool,
    path: Option<PathBuf>,
    sources: Vec<String>,
}

impl<'a> Row<'a> {
    fn new(card: &'a Card, fetcher: &Fetcher) -> Self {
        let path = fetcher.cached(card);
        Row {
            name: &card.name,
            family: &card.family,
            kind: card.kind,
            parameters: &card.parameters,
            quantization: &card.quantization,
            size: card.size(),
            context: card.context,
            licence: &card.licence,
            note: &card.note,
            cached: path.is_some(),
            path,
            sources: card.sources.iter().map(describe_source).collect(),
        }
    }
}

fn describe_source(source: &CardSource) -> String {
    match source {
        CardSource::Hub { repo, revision } => format!("hub {repo}@{revision}"),
        CardSource::Parts { parts } => {
            let names: Vec<String> = parts.iter().map(|p| format!("{} {}", p.package, p.version)).collect();
            format!("package {}", names.join(" + "))
        }
        CardSource::Package { package, version, .. } => format!("package {package} {version}"),
    }
}

pub(crate) fn run(args: ModelsArgs) -> anyhow::Result<ExitCode> {
    let fetcher = Fetcher::new(FetchOptions::default());
    let listing = Listing {
        cache: fetcher.cache_folder().ok().map(PathBuf::from),
        default: DEFAULT_CARD,
        models: Card::all().iter().map(|card| Row::new(card, &fetcher)).collect(),
    };
    let text = if args.json { serde_json::to_string_pretty(&listing)? + "\n" } else { table(&listing) };
    emit(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn table(listing: &Listing<'_>) -> String {
    let head = ["NAME", "KIND", "PARAMETERS", "QUANT", "SIZE", "CONTEXT", "CACHED", "LICENCE"].map(str::to_owned);
    let mut rows = vec![head.to_vec()];
    for row in &listing.models {
        let kind = match row.kind {
            CardKind::Chat => "chat",
            CardKind::Base => "base",
            CardKind::Embedder => "embedder",
        };
        let mark = if row.name == listing.default { " *" } else { "" };
        rows.push(vec![
            format!("{}{mark}", row.name),
            kind.to_owned(),
            row.parameters.to_owned(),
            row.quantization.to_owned(),
            megabytes(row.size),
            row.context.to_string(),
            if row.cached { "yes" } else { "no" }.to_owned(),
            row.licence.to_owned(),
        ]);
    }
    let cache = listing.cache.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
    format!("{}\n* the default. Cache: {cache}. Fetch one with `weaklink pull NAME`.\n", align(&rows))
}

/// Columns padded to their widest cell, two spaces between them.
pub(crate) fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text += "\n";
    }
    text
}

/// Decimal megabytes, as download pages count them.
pub(crate) fn megabytes(bytes: u64) -> String {
    if bytes >= 1_000_000_000 {
        format!("{:.2} GB", bytes as f64 / 1e9)
    } else {
        format!("{:.1} MB", bytes as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_card_in_aligned_columns() {
        let fetcher = Fetcher::new(FetchOptions { cache: Some("/no/such/cache".into()), ..Default::default() });
        let models: Vec<Row<'_>> = Card::all().iter().map(|card| Row::new(card, &fetcher)).collect();
        let text = table(&Listing { cache: None, default: DEFAULT_CARD, models });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), Card::all().len() + 3);
        let column = lines[0].find("LICENCE").expect("head");
        for (line, card) in lines[1..].iter().zip(Card::all()) {
            assert!(line.starts_with(&card.name), "{line}");
            assert!(line[column..].starts_with(&card.licence) && line.contains(" no "), "{line}");
        }
        assert!(lines[1].starts_with("smollm2-135m *") && lines[1].contains("98.4 MB"), "{}", lines[1]);
    }

    #[test]
    fn sizes_are_decimal() {
        assert_eq!(megabytes(98_362_432), "98.4 MB");
        assert_eq!(megabytes(1_117_320_736), "1.12 GB");
        assert_eq!(megabytes(0), "0.0 MB");
    }
}
