//! A cache folder and a pip of a test's own.

use std::io::Write;
use std::time::Duration;

use super::super::*;

pub(super) struct Place {
    pub(super) folder: tempfile::TempDir,
}

impl Place {
    pub(super) fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("folder") }
    }

    pub(super) fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    pub(super) fn fetcher(&self, endpoint: &str) -> Fetcher {
        self.fetcher_with(endpoint, "exit 1", false)
    }

    /// `pip` is a shell script; `$dest` and `$name` are set for it.
    pub(super) fn fetcher_with(&self, endpoint: &str, pip: &str, offline: bool) -> Fetcher {
        let script = self.folder.path().join("pip.sh");
        let prelude = "while [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=\"$2\"; shift; done; name=\"${1%%==*}\"\n";
        fs::write(&script, format!("{prelude}wheels='{}'\n{pip}\n", self.folder.path().display())).expect("script");
        let options = FetchOptions {
            cache: Some(self.cache()),
            offline,
            endpoint: Some(endpoint.to_owned()),
            pip: Some(vec!["sh".into(), script.into()]),
            deadlines: Deadlines {
                connect: Duration::from_millis(500),
                response: Duration::from_millis(700),
                stall: Duration::from_millis(300),
                pip: Duration::from_secs(20),
            },
        };
        let environment = Environment { token: Some("hf_canary".into()), ..Environment::default() };
        Fetcher::with_environment(options, environment)
    }

    /// Writes `NAME.whl` for the fake pip to copy.
    pub(super) fn wheel(&self, name: &str, members: &[(&str, &[u8])]) {
        let file = fs::File::create(self.folder.path().join(format!("{name}.whl"))).expect("wheel");
        let mut zip = zip::ZipWriter::new(file);
        for (member, bytes) in members {
            zip.start_file(*member, zip::write::SimpleFileOptions::default()).expect("member");
            zip.write_all(bytes).expect("member");
        }
        zip.finish().expect("wheel");
    }

    /// Everything in the cache, hidden files too.
    pub(super) fn cached_files(&self) -> Vec<String> {
        fn walk(folder: &Path, base: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    walk(&path, base, found);
                } else {
                    found.push(path.strip_prefix(base).expect("inside").to_string_lossy().into_owned());
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.cache(), &self.cache(), &mut found);
        found.sort();
        found
    }
}
