//! `CARD|FILE.gguf|FOLDER|hub:OWNER/REPO[@REV]/FILE`, as given on the command line.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::FetchError;
use crate::card::{Card, is_safe_relative};

/// Which model is meant, before anything is looked up or fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSpec {
    /// An embedded card by its name.
    Card(String),
    /// A GGUF file.
    File(PathBuf),
    /// A folder with `config.json`, `tokenizer.json` and safetensors files.
    Folder(PathBuf),
    /// A GGUF file of a model repository on the hub.
    Hub {
        /// `OWNER/REPO`.
        repo: String,
        /// Branch, tag or commit; `main` when not given.
        revision: String,
        /// Path of the file in the repository.
        file: String,
    },
}

impl FromStr for ModelSpec {
    type Err = FetchError;

    /// Decides what a text names. Only a text that could be either a file or a
    /// folder is looked up on the disk; a card's name always means the card.
    fn from_str(text: &str) -> Result<Self, FetchError> {
        let bad = |reason: &str| FetchError::BadSpec { spec: text.to_owned(), reason: reason.to_owned() };
        if text.trim().is_empty() {
            return Err(bad("it is empty"));
        }
        if let Some(rest) = text.strip_prefix("hub:") {
            return parse_hub(rest).map_err(|reason| bad(&reason));
        }
        if Card::by_name(text).is_some() {
            return Ok(ModelSpec::Card(text.to_owned()));
        }
        let path = Path::new(text);
        if path.is_dir() {
            Ok(ModelSpec::Folder(path.to_owned()))
        } else if path.is_file()
            || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
            || text.contains(['/', '\\'])
        {
            Ok(ModelSpec::File(path.to_owned()))
        } else {
            Ok(ModelSpec::Card(text.to_owned()))
        }
    }
}

fn parse_hub(rest: &str) -> Result<ModelSpec, String> {
    let form = "the form is hub:OWNER/REPO[@REV]/FILE";
    let mut parts = rest.splitn(3, '/');
    let (Some(owner), Some(name), Some(file)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(form.to_owned());
    };
    let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
    let repo = format!("{owner}/{name}");
    if !is_safe_relative(&repo) || !is_safe_relative(file) || !is_safe_relative(revision) {
        return Err(format!("{form}, without empty or '..' parts"));
    }
    if !file.to_ascii_lowercase().ends_with(".gguf") {
        return Err(format!(
            "only single GGUF files are fetched by name, '{file}' is none; fetch a safetensors folder yourself and pass the folder"
        ));
    }
    if let Some(quantization) = unsupported_quantization(file) {
        return Err(format!(
            "{quantization} is a quantization that this program cannot read; choose a Q4_0 to Q8_0, K-quant, F16, BF16 or F32 file"
        ));
    }
    Ok(ModelSpec::Hub { repo, revision: revision.to_owned(), file: file.to_owned() })
}

/// The quantization that a file's name gives, where it is one that the loader would refuse: known before
/// hundreds of megabytes are fetched. A name that says nothing, or something else, is settled by the file.
fn unsupported_quantization(file: &str) -> Option<&str> {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split(['-', '.']).find(|part| {
        let upper = part.to_ascii_uppercase();
        let numbered = |prefix: &str| {
            upper.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        numbered("IQ") || numbered("TQ") || upper.starts_with("MXFP4") || upper.starts_with("NVFP4")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(repo: &str, revision: &str, file: &str) -> ModelSpec {
        ModelSpec::Hub { repo: repo.to_owned(), revision: revision.to_owned(), file: file.to_owned() }
    }

    #[test]
    fn a_quantization_that_cannot_be_read_is_refused_by_its_name_before_any_download() {
        for (file, refused) in [
            ("Qwen2.5-1.5B-Instruct-IQ4_XS.gguf", Some("IQ4_XS")),
            ("sub/model.iq2_xxs.gguf", Some("iq2_xxs")),
            ("gpt-oss-20b-MXFP4.gguf", Some("MXFP4")),
            ("m-TQ1_0.gguf", Some("TQ1_0")),
            ("qwen2.5-1.5b-instruct-q4_k_m.gguf", None),
            ("uniq-1.gguf", None),
            ("m-BF16.gguf", None),
        ] {
            assert_eq!(unsupported_quantization(file), refused, "{file}");
        }
        let error = "hub:a/b/m-IQ4_XS.gguf".parse::<ModelSpec>().expect_err("cannot be read").to_string();
        assert!(error.contains("IQ4_XS") && error.contains("Q4_0"), "{error}");
    }

    #[test]
    fn every_form_is_recognised() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let folder_text = folder.path().to_str().expect("utf-8").to_owned();
        let cases = [
            ("smollm2-135m", ModelSpec::Card("smollm2-135m".into())),
            ("no-such-card", ModelSpec::Card("no-such-card".into())),
            ("weights.gguf", ModelSpec::File("weights.gguf".into())),
            ("W.GGUF", ModelSpec::File("W.GGUF".into())),
            ("dir/weights", ModelSpec::File("dir/weights".into())),
            ("./nothing", ModelSpec::File("./nothing".into())),
            (&folder_text, ModelSpec::Folder(folder.path().into())),
            ("hub:a/b/c.gguf", hub("a/b", "main", "c.gguf")),
            ("hub:a/b@v1.0/sub/c.gguf", hub("a/b", "v1.0", "sub/c.gguf")),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<ModelSpec>().expect(text), want, "{text}");
        }
    }

    #[test]
    fn malformed_specs_are_refused() {
        for text in [
            "",
            "  ",
            "hub:",
            "hub:a/b",
            "hub:a//c.gguf",
            "hub:../b/c.gguf",
            "hub:a/b/../c.gguf",
            "hub:a/b@/c.gguf",
            "hub:a/b/c.safetensors",
        ] {
            let error = text.parse::<ModelSpec>().expect_err(text).to_string();
            assert!(!error.contains('\n') && error.contains(text), "{error}");
        }
    }
}
