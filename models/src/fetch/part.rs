//! A file on its way into the cache: written under a temporary name of its
//! own, hashed as it is written, and renamed only when every check has passed.
//!
//! Nothing here trusts a lock: on network file systems locks are missing or do
//! nothing. Two processes that fetch the same file write two temporary files,
//! and whichever renames last replaces identical bytes.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::FetchError;

/// Every temporary name starts with this, and nothing else does.
const PREFIX: &str = ".weaklink-";
/// Leftovers of dead processes are removed after this long.
const STALE: Duration = Duration::from_secs(24 * 3600);
/// A partial file that nobody has written to for this long has no writer: a
/// download that stalls gives up much sooner.
const IDLE: Duration = Duration::from_secs(600);
/// Enough of a file to tell what it is.
const HEAD: usize = 512;

/// What a file must turn out to be.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// File name, for messages and for the kind of content expected.
    pub name: String,
    /// Length in bytes, where known.
    pub size: Option<u64>,
    /// sha256 in lowercase hex, where known.
    pub sha256: Option<String>,
}

/// Why content could not be taken in.
#[derive(Debug)]
pub(super) enum PartError {
    /// The source's fault: another source may do better.
    Content(String),
    /// The disk's fault: no source can do better.
    Local(FetchError),
}

/// The temporary file.
pub(super) struct Part {
    wanted: Wanted,
    path: PathBuf,
    file: File,
    hash: Sha256,
    head: Vec<u8>,
    len: u64,
    /// Bytes taken over from an earlier attempt that did not finish.
    resumed: u64,
    keep: bool,
}

impl Part {
    /// Opens a new temporary file in `folder`.
    pub(super) fn open(folder: &Path, wanted: Wanted) -> Result<Part, PartError> {
        fs::create_dir_all(folder).map_err(|e| local(folder, "create", e))?;
        let path = folder.join(format!("{}{}.{}.part", PREFIX, key(&wanted), owner()));
        let file =
            OpenOptions::new().write(true).create_new(true).open(&path).map_err(|e| local(&path, "create", e))?;
        Ok(Part { wanted, path, file, hash: Sha256::new(), head: Vec::new(), len: 0, resumed: 0, keep: false })
    }

    /// The same, beginning with the bytes of an unfinished earlier attempt at
    /// the same content if one lies there without an owner.
    pub(super) fn resume(folder: &Path, wanted: Wanted) -> Result<Part, PartError> {
        let mut part = Part::open(folder, wanted)?;
        part.take_over()?;
        Ok(part)
    }

    /// Unfinished attempts at the same content that nobody works on, longest first.
    fn leftovers(&self) -> Vec<PathBuf> {
        let folder = self.path.parent().map(fs::read_dir);
        let (Some(Ok(entries)), Some(_)) = (folder, &self.wanted.sha256) else { return Vec::new() };
        let start = format!("{}{}.", PREFIX, key(&self.wanted));
        let mut found: Vec<(u64, PathBuf)> = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(rest) = name.strip_prefix(&start).and_then(|rest| rest.strip_suffix(".part")) else { continue };
            let Ok(meta) = entry.metadata() else { continue };
            if abandoned(rest, &meta) {
                found.push((meta.len(), entry.path()));
            }
        }
        found.sort_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, path)| path).collect()
    }

    /// Copies the bytes of an abandoned attempt. A copy, not the file itself: a
    /// writer thought dead that wakes up again cannot reach it.
    fn take_over(&mut self) -> Result<(), PartError> {
        let Some(old) = self.leftovers().into_iter().next() else { return Ok(()) };
        // The rename decides between processes that found the same leftover.
        let claimed = old.with_file_name(format!("{}{}.{}.claimed", PREFIX, key(&self.wanted), owner()));
        if fs::rename(&old, &claimed).is_err() {
            return Ok(());
        }
        let result = self.copy_from(&claimed);
        // Its only content is now ours, or was unusable.
        let _ = fs::remove_file(&claimed);
        match result {
            Ok(()) => {
                self.resumed = self.len;
                Ok(())
            }
            Err(PartError::Content(_)) => self.restart(),
            Err(error) => Err(error),
        }
    }

    fn copy_from(&mut self, path: &Path) -> Result<(), PartError> {
        let mut file = File::open(path).map_err(|e| PartError::Content(e.to_string()))?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => self.write(&buffer[..n])?,
                Err(error) => return Err(PartError::Content(error.to_string())),
            }
        }
    }

    /// Bytes written so far.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether some of the bytes come from an earlier attempt.
    pub(super) fn is_resumed(&self) -> bool {
        self.resumed > 0
    }

    /// What the file is to become.
    pub(super) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Sets what was learned from the source after opening.
    pub(super) fn expect(&mut self, size: Option<u64>) {
        self.wanted.size = self.wanted.size.or(size);
    }

    /// Appends bytes. Refuses more than the expected length, and content that
    /// is visibly something else, before it fills the disk.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), PartError> {
        let len = self.len + bytes.len() as u64;
        if let Some(size) = self.wanted.size.filter(|size| len > *size) {
            return Err(PartError::Content(format!("{} is longer than the expected {size} bytes", self.wanted.name)));
        }
        if self.head.len() < HEAD {
            self.head.extend(bytes.iter().take(HEAD - self.head.len()));
            if self.head.len() >= 16 {
                check_head(&self.wanted.name, &self.head, self.wanted.size).map_err(PartError::Content)?;
            }
        }
        self.file.write_all(bytes).map_err(|e| local_sized(&self.path, "write", e, self.wanted.size))?;
        self.hash.update(bytes);
        self.len = len;
        Ok(())
    }

    /// Throws the content away and begins again.
    pub(super) fn restart(&mut self) -> Result<(), PartError> {
        self.file.set_len(0).map_err(|e| local(&self.path, "truncate", e))?;
        io::Seek::rewind(&mut self.file).map_err(|e| local(&self.path, "rewind", e))?;
        self.hash = Sha256::new();
        self.head.clear();
        self.len = 0;
        self.resumed = 0;
        Ok(())
    }

    /// Checks length, hash and kind of what was written.
    pub(super) fn check(&self) -> Result<(), PartError> {
        let name = &self.wanted.name;
        check_head(name, &self.head, self.wanted.size).map_err(PartError::Content)?;
        if let Some(size) = self.wanted.size.filter(|size| *size != self.len) {
            return Err(PartError::Content(format!("{name} has {} bytes, expected {size}", self.len)));
        }
        if let Some(want) = &self.wanted.sha256 {
            let found = hex(&self.hash.clone().finalize());
            if found != *want {
                return Err(PartError::Content(format!("{name} has sha256 {found}, expected {want}")));
            }
        }
        Ok(())
    }

    /// Puts the checked file in its place. The content is on the disk before
    /// its name is, so a power cut leaves the old state or the new one.
    pub(super) fn publish(mut self, target: &Path) -> Result<(), PartError> {
        self.check()?;
        self.file.sync_all().map_err(|e| local_sized(&self.path, "sync", e, self.wanted.size))?;
        if let Err(error) = fs::rename(&self.path, target) {
            return Err(local(target, "rename into", error));
        }
        self.keep = true; // there is nothing left under the temporary name
        for done_with in self.leftovers() {
            let _ = fs::remove_file(done_with);
        }
        sync_folder(target.parent());
        Ok(())
    }

    /// Leaves the bytes for a later attempt to go on from.
    pub(super) fn abandon(mut self) {
        if self.len == 0 || self.wanted.sha256.is_none() {
            return; // dropped, and removed
        }
        let free = self.path.with_file_name(format!("{}{}.free-{}.part", PREFIX, key(&self.wanted), owner()));
        self.keep = self.file.sync_data().is_ok() && fs::rename(&self.path, free).is_ok();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A temporary folder that is removed unless it was renamed away.
pub(super) struct PartFolder {
    path: PathBuf,
}

impl PartFolder {
    /// Creates an empty folder of its own inside `parent`.
    pub(super) fn create(parent: &Path, what: &str) -> Result<PartFolder, FetchError> {
        fs::create_dir_all(parent).map_err(|e| io_error(parent, "create", e, None))?;
        let path = parent.join(format!("{}{}.{}.dir", PREFIX, what, owner()));
        fs::create_dir(&path).map_err(|e| io_error(&path, "create", e, None))?;
        Ok(PartFolder { path })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the folder its final name. `complete` says whether what lies
    /// there already is the same model, put there by somebody faster.
    pub(super) fn publish(self, target: &Path, complete: impl Fn() -> bool) -> Result<(), FetchError> {
        sync_folder(Some(&self.path));
        for _ in 0..2 {
            match fs::rename(&self.path, target) {
                Ok(()) => {
                    sync_folder(target.parent());
                    return Ok(());
                }
                Err(_) if complete() => return Ok(()),
                Err(error) if !target.exists() => return Err(io_error(target, "rename into", error, None)),
                Err(_) => {
                    // A damaged folder has the name: move it away, then try once more.
                    let aside = target.with_file_name(format!("{}old.{}.dir", PREFIX, owner()));
                    if fs::rename(target, &aside).is_ok() {
                        let _ = fs::remove_dir_all(&aside);
                    }
                }
            }
        }
        Err(io_error(target, "replace", io::Error::other("another process keeps writing it"), None))
    }
}

impl Drop for PartFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes leftovers of our own naming: partial files after a day, in which they
/// can be gone on from; everything else as soon as its process is gone.
pub(super) fn clean(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(meta) = entry.metadata() else { continue };
        let old = meta.modified().ok().and_then(|t| t.elapsed().ok()).is_some_and(|age| age > STALE);
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let ownerless = rest
            .strip_suffix(".dir")
            .or(rest.strip_suffix(".claimed"))
            .is_some_and(|rest| rest.rsplit('.').next().is_some_and(is_dead));
        if (old || ownerless) && meta.is_dir() {
            let _ = fs::remove_dir_all(entry.path());
        } else if old || ownerless {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Free bytes of the file system that holds `path` or its closest existing parent.
pub fn free_space(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|p| !p.as_os_str().is_empty() && p.exists())?;
    #[cfg(unix)]
    {
        let stat = rustix::fs::statvfs(existing).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    }
    #[cfg(not(unix))]
    {
        let _ = existing;
        None
    }
}

/// Whether the first bytes can belong to a file of that name.
pub(super) fn check_head(name: &str, head: &[u8], size: Option<u64>) -> Result<(), String> {
    let text = head.trim_ascii_start();
    let starts = |tag: &[u8]| text.len() >= tag.len() && text[..tag.len()].eq_ignore_ascii_case(tag);
    if starts(b"<!doctype") || starts(b"<html") || starts(b"<?xml") {
        return Err(format!("{name}: an HTML page came instead of the file (a login page or a proxy in between?)"));
    }
    let lower = name.to_ascii_lowercase();
    let plausible = if lower.ends_with(".gguf") {
        head.starts_with(b"GGUF")
    } else if lower.ends_with(".safetensors") {
        // 8 bytes with the length of a JSON header, then that header.
        match head.first_chunk::<8>() {
            Some(length) => {
                let length = u64::from_le_bytes(*length);
                length >= 2 && length <= size.unwrap_or(u64::MAX) && head.get(8).is_none_or(|b| *b == b'{')
            }
            None => false,
        }
    } else if lower.ends_with(".json") {
        text.first().is_some_and(|b| matches!(b, b'{' | b'['))
    } else {
        true
    };
    if plausible {
        return Ok(());
    }
    let kind = lower.rsplit('.').next().unwrap_or_default();
    Err(format!("{name} does not begin like a {kind} file (first bytes: {})", hex(&head[..head.len().min(8)])))
}

/// Lowercase hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

/// Names the content, so that only attempts at the same bytes are resumed.
fn key(wanted: &Wanted) -> String {
    match &wanted.sha256 {
        Some(sha) => sha[..sha.len().min(16)].to_owned(),
        None => "any".to_owned(),
    }
}

/// `PLACE-PID-NONCE`: unique, and on the same machine it tells who writes.
fn owner() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let nonce = nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{}-{nonce:x}", place(), std::process::id())
}

/// Names this boot and process namespace, in which a process id means one
/// process; `other` where that cannot be told.
fn place() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let space = fs::read_link("/proc/self/ns/pid");
    match (boot, space) {
        (Ok(boot), Ok(space)) => {
            let mut hash = Sha256::new();
            hash.update(boot.trim());
            hash.update(space.to_string_lossy().as_bytes());
            hex(&hash.finalize()[..6])
        }
        _ => "other".to_owned(),
    }
}

fn abandoned(owner: &str, meta: &fs::Metadata) -> bool {
    let idle = || meta.modified().ok().and_then(|t| t.elapsed().ok()).is_some_and(|idle| idle > IDLE);
    owner.starts_with("free-") || is_dead(owner) || idle()
}

/// Whether the owner ran here and runs no more.
fn is_dead(owner: &str) -> bool {
    let mut fields = owner.split('-');
    match (fields.next(), fields.next()) {
        (Some(where_), Some(pid)) if where_ != "other" && where_ == place() => {
            pid.parse::<u32>().is_ok_and(|pid| !runs(pid))
        }
        _ => false,
    }
}

/// Whether a process runs; one that was killed and not yet waited for does not.
fn runs(pid: u32) -> bool {
    // "PID (NAME) STATE ...", and the name may hold anything.
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_none_or(|rest| !rest.trim_start().starts_with(['Z', 'X'])),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Makes a rename durable where folders can be synced; elsewhere the rename is
/// durable by itself or nothing can be done.
fn sync_folder(folder: Option<&Path>) {
    if let Some(folder) = folder.and_then(|f| File::open(f).ok()) {
        let _ = folder.sync_all();
    }
}

fn local(path: &Path, action: &'static str, error: io::Error) -> PartError {
    PartError::Local(io_error(path, action, error, None))
}

fn local_sized(path: &Path, action: &'static str, error: io::Error, size: Option<u64>) -> PartError {
    PartError::Local(io_error(path, action, error, size))
}

pub(super) fn io_error(path: &Path, action: &'static str, error: io::Error, size: Option<u64>) -> FetchError {
    let folder = path.parent().unwrap_or(path).to_owned();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            FetchError::DiskFull { free: free_space(&folder).unwrap_or(0), folder, needed: size }
        }
        _ => FetchError::Io { path: path.to_owned(), action, source: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC_SHA: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn wanted(sha: Option<&str>) -> Wanted {
        Wanted { name: "abc.bin".into(), size: Some(3), sha256: sha.map(str::to_owned) }
    }

    fn files(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .expect("list")
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn content(result: Result<(), PartError>) -> String {
        match result.expect_err("must be refused") {
            PartError::Content(text) => text,
            PartError::Local(error) => panic!("blamed the disk: {error}"),
        }
    }

    #[test]
    fn a_checked_file_lands_under_its_name_only() {
        let folder = tempfile::tempdir().expect("folder");
        let mut part = Part::open(folder.path(), wanted(Some(ABC_SHA))).expect("open");
        part.write(b"ab").expect("write");
        part.write(b"c").expect("write");
        part.publish(&folder.path().join("abc.bin")).expect("publish");
        assert_eq!(files(folder.path()), ["abc.bin"]);
        assert_eq!(fs::read(folder.path().join("abc.bin")).expect("read"), b"abc");
    }

    #[test]
    fn wrong_length_and_wrong_hash_leave_nothing_and_name_both_sides() {
        let folder = tempfile::tempdir().expect("folder");
        let mut part = Part::open(folder.path(), wanted(Some(ABC_SHA))).expect("open");
        part.write(b"abd").expect("write");
        let error = content(part.publish(&folder.path().join("abc.bin")));
        assert!(error.contains(ABC_SHA) && error.matches("sha256").count() == 1, "{error}");
        // sha256("abd"), computed with sha256sum
        assert!(error.contains("a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9"), "{error}");

        let mut part = Part::open(folder.path(), wanted(None)).expect("open");
        part.write(b"ab").expect("write");
        let error = content(part.publish(&folder.path().join("abc.bin")));
        assert!(error.contains("2 bytes") && error.contains('3'), "{error}");

        let mut part = Part::open(folder.path(), wanted(None)).expect("open");
        let error = content(part.write(b"abcd"));
        assert!(error.contains("longer"), "{error}");
        drop(part);
        assert!(files(folder.path()).is_empty());
    }

    #[test]
    fn what_is_done_with_is_removed_when_the_file_lands() {
        let folder = tempfile::tempdir().expect("folder");
        for bytes in [&b"ab"[..], b"a"] {
            let mut part = Part::open(folder.path(), wanted(Some(ABC_SHA))).expect("open");
            part.write(bytes).expect("write");
            part.abandon();
        }
        assert_eq!(files(folder.path()).len(), 2);
        let mut part = Part::resume(folder.path(), wanted(Some(ABC_SHA))).expect("open");
        assert_eq!(part.len(), 2, "the longest");
        part.write(b"c").expect("write");
        part.publish(&folder.path().join("abc.bin")).expect("publish");
        assert_eq!(files(folder.path()), ["abc.bin"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_killed_process_that_was_not_waited_for_is_dead() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        assert!(runs(child.id()));
        child.kill().expect("kill");
        // The kernel may need a moment to end it; until we wait it stays listed.
        while runs(child.id()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().expect("wait");
        assert!(!runs(child.id()) && runs(std::process::id()));
    }

    #[test]
    fn an_abandoned_attempt_is_gone_on_from_once() {
        let folder = tempfile::tempdir().expect("folder");
        let mut part = Part::resume(folder.path(), wanted(Some(ABC_SHA))).expect("open");
        part.write(b"ab").expect("write");
        part.abandon();
        let mut first = Part::resume(folder.path(), wanted(Some(ABC_SHA))).expect("open");
        let second = Part::resume(folder.path(), wanted(Some(ABC_SHA))).expect("open");
        assert_eq!((first.len(), first.is_resumed()), (2, true));
        assert_eq!((second.len(), second.is_resumed()), (0, false));
        first.write(b"c").expect("write");
        first.publish(&folder.path().join("abc.bin")).expect("publish");
        drop(second);
        assert_eq!(files(folder.path()), ["abc.bin"]);
    }

    #[test]
    fn another_content_or_a_living_writer_is_not_resumed() {
        let folder = tempfile::tempdir().expect("folder");
        let mut living = Part::resume(folder.path(), wanted(Some(ABC_SHA))).expect("open");
        living.write(b"ab").expect("write");
        assert_eq!(Part::resume(folder.path(), wanted(Some(ABC_SHA))).expect("open").len(), 0);
        living.abandon();
        let other = "0".repeat(64);
        assert_eq!(Part::resume(folder.path(), wanted(Some(&other))).expect("open").len(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_leftover_of_a_killed_process_is_resumed() {
        let folder = tempfile::tempdir().expect("folder");
        // A process id above the kernel's maximum cannot be alive.
        let name = format!("{PREFIX}{}.{}-4999999-abc.part", &ABC_SHA[..16], place());
        fs::write(folder.path().join(name), b"ab").expect("write");
        assert_eq!(Part::resume(folder.path(), wanted(Some(ABC_SHA))).expect("open").len(), 2);
    }

    #[test]
    fn leftovers_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().expect("folder");
        let old = SystemTime::now() - STALE - Duration::from_secs(60);
        let alive = owner();
        let dead = format!("{}-4999999-abc", place());
        // Name, whether it is old, whether it stays.
        let cases = [
            (format!("{PREFIX}a.{alive}.part"), true, false),
            (format!("{PREFIX}b.{alive}.part"), false, true),
            (format!("{PREFIX}c.{dead}.part"), false, true),
            (format!("{PREFIX}d-1.5b.{dead}.dir"), false, !cfg!(target_os = "linux")),
            (format!("{PREFIX}e-1.5b.{alive}.dir"), false, true),
            ("model.gguf".to_owned(), true, true),
        ];
        for (name, is_old, _) in &cases {
            let file = File::create(folder.path().join(name)).expect("create");
            if *is_old {
                file.set_modified(old).expect("set time");
            }
        }
        clean(folder.path());
        let mut stay: Vec<String> =
            cases.iter().filter(|(_, _, stays)| *stays).map(|(name, _, _)| name.clone()).collect();
        stay.sort();
        assert_eq!(files(folder.path()), stay);
    }

    #[test]
    fn content_of_the_wrong_kind_is_seen_at_once() {
        let header = [&8u64.to_le_bytes()[..], b"{\"a\": 1}"].concat();
        let good: [(&str, &[u8]); 4] = [
            ("m.gguf", b"GGUF\x03\0\0\0"),
            ("m.safetensors", &header),
            ("c.json", b" {\"a\": 1}"),
            ("vocab.txt", b"[PAD]"),
        ];
        for (name, head) in good {
            assert_eq!(check_head(name, head, Some(100)), Ok(()), "{name}");
        }
        let bad: [(&str, &[u8], &str); 6] = [
            ("m.gguf", b"<!DOCTYPE html><p>log in", "HTML"),
            ("c.json", b"\n <HTML>", "HTML"),
            ("m.gguf", b"FUGG\x03\0\0\0", "46554747"),
            ("m.gguf", b"", "does not begin"),
            ("m.safetensors", &u64::MAX.to_le_bytes(), "does not begin"),
            ("m.safetensors", b"abc", "does not begin"),
        ];
        for (name, head, want) in bad {
            let error = check_head(name, head, Some(100)).expect_err(name);
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn free_space_of_a_folder_that_does_not_exist_yet_is_its_parents() {
        let folder = tempfile::tempdir().expect("folder");
        assert!(free_space(&folder.path().join("a/b")).is_none_or(|bytes| bytes > 0));
    }
}
