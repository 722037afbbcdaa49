//! Models the user names by their path: is what is there a model at all?

use std::fs;
use std::io::Read;
use std::path::Path;

use super::{FetchError, part};

/// Whether the path is a file that begins like GGUF.
pub(super) fn check_gguf(path: &Path) -> Result<(), FetchError> {
    let not = |reason: String| Err(FetchError::NotAModel { path: path.to_owned(), reason });
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return not("there is no such file or folder (a card is given by its name, see `weaklink models`)".into());
        }
        Err(error) => return Err(FetchError::Io { path: path.to_owned(), action: "read", source: error }),
    };
    if !meta.is_file() {
        return not("is not a regular file".into());
    }
    let mut head = Vec::new();
    fs::File::open(path).and_then(|file| file.take(512).read_to_end(&mut head)).map_err(|source| FetchError::Io {
        path: path.to_owned(),
        action: "read",
        source,
    })?;
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors")) {
        return not("is one safetensors file; give the folder that also holds config.json and tokenizer.json".into());
    }
    match part::check_head("model.gguf", &head, Some(meta.len())) {
        Ok(()) => Ok(()),
        Err(_) if head.is_empty() => not("is empty".into()),
        Err(_) => not(format!("is not a GGUF file (first bytes: {})", part::hex(&head[..head.len().min(8)]))),
    }
}

/// Whether the folder holds what a model needs.
pub(super) fn check_folder(path: &Path) -> Result<(), FetchError> {
    let not = |reason: String| Err(FetchError::NotAModel { path: path.to_owned(), reason });
    let entries =
        fs::read_dir(path).map_err(|source| FetchError::Io { path: path.to_owned(), action: "list", source })?;
    let names: Vec<String> = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    let mut missing: Vec<&str> =
        ["config.json", "tokenizer.json"].into_iter().filter(|want| !names.iter().any(|name| name == want)).collect();
    if !names.iter().any(|name| name.ends_with(".safetensors")) {
        missing.push("*.safetensors");
    }
    if missing.is_empty() {
        return Ok(());
    }
    let gguf: Vec<&String> = names.iter().filter(|name| name.to_lowercase().ends_with(".gguf")).collect();
    let hint = match gguf.as_slice() {
        [] => String::new(),
        [one] => format!("; did you mean the file {}?", path.join(one).display()),
        more => format!("; it holds {} GGUF files, name one of them", more.len()),
    };
    not(format!("holds no model: no {} in it{hint}", missing.join(", no ")))
}

/// The name of a file without `.gguf`, or of a folder.
pub(super) fn stem(path: &Path) -> String {
    // `.` and `..` have no name of their own.
    let full = if path.file_name().is_none() { fs::canonicalize(path).ok() } else { None };
    let path = full.as_deref().unwrap_or(path);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match name.len().checked_sub(5).and_then(|at| name.split_at_checked(at)) {
        Some((stem, end)) if end.eq_ignore_ascii_case(".gguf") => stem.to_owned(),
        _ => name,
    }
}
