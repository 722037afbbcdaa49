//! Files from the hub, through hf-hub.
//!
//! hf-hub's plain download starts from zero after a cut and compares no hash,
//! so its byte stream is used instead, which takes a range: a cut stream is
//! resumed where it broke, and [`Part`] checks length and hash.
//! The network runs on a thread of its own, so callers may be inside or
//! outside of an async runtime.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use hf_hub::{HFClient, HFError, HFResult};

use super::part::{Part, PartError, Wanted};
use super::{Deadlines, Progress};

/// Chunks on their way from the network thread to the disk.
const CHANNEL: usize = 16;
/// How often a stream may break before the attempt is given up; each break
/// must have brought something new.
const MAX_BREAKS: usize = 8;

/// A hub or a mirror of it, with what is needed to ask it.
#[derive(Clone)]
pub(super) struct Hub {
    /// `https://huggingface.co` or the mirror's address.
    pub endpoint: String,
    /// Sent as a bearer token; never printed.
    pub token: Option<String>,
    pub deadlines: Deadlines,
}

/// One file there.
#[derive(Clone)]
pub(super) struct HubFile {
    pub repo: String,
    pub revision: String,
    pub path: String,
}

/// What the hub says of a file before sending it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HubMeta {
    pub size: Option<u64>,
    /// Only of large files, which the hub addresses by hash.
    pub sha256: Option<String>,
}

enum Event {
    /// The stream begins; how many bytes it announces.
    Start(Option<u64>),
    Chunk(Vec<u8>),
    End,
    /// Nothing came: retrying at once is useless.
    Refused(String),
    /// It broke on the way.
    Broken(String),
}

enum Broken {
    /// May be resumed.
    Retry(String),
    /// May not.
    Final(PartError),
}

impl Hub {
    /// The address without scheme, user and path: what a person is told.
    pub(super) fn host(&self) -> &str {
        let rest = self.endpoint.split_once("://").map_or(self.endpoint.as_str(), |(_, rest)| rest);
        let authority = rest.split('/').next().unwrap_or(rest);
        authority.rsplit('@').next().unwrap_or(authority)
    }

    /// Asks for length and hash. The redirect that carries them is not
    /// followed: the storage behind it does not know them.
    pub(super) fn metadata(&self, file: &HubFile) -> Result<HubMeta, String> {
        let (hub, file_) = (self.clone(), file.clone());
        on_thread(move || async move { hub.metadata_async(&file_).await })
            .map_err(|reason| self.scrub(&reason))?
            .map_err(|reason| self.scrub(&reason))
    }

    /// Streams the file into `part`, resuming after cuts. Bytes of an attempt
    /// that stays unfinished are left for the next one.
    pub(super) fn download(
        &self,
        file: &HubFile,
        mut part: Part,
        source: &str,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Part, PartError> {
        let mut breaks = 0;
        loop {
            let before = part.len();
            match self.stream(file, &mut part, source, progress) {
                Ok(()) => match part.check() {
                    Ok(()) => return Ok(part),
                    // The bytes of the earlier attempt may have been the bad ones.
                    Err(PartError::Content(reason)) if part.is_resumed() => {
                        progress(Progress::Note(&format!("{reason}; starting again from zero")));
                        part.restart()?;
                    }
                    Err(error) => return Err(error),
                },
                Err(Broken::Retry(_)) if part.len() > before && breaks < MAX_BREAKS => breaks += 1,
                Err(Broken::Retry(reason)) => {
                    let name = part.wanted().name.clone();
                    let (have, size) = (part.len(), part.wanted().size);
                    part.abandon();
                    let of = size.map_or(String::new(), |size| format!(" of {size}"));
                    return Err(PartError::Content(format!(
                        "{name}: the transfer broke after {have}{of} bytes: {reason}"
                    )));
                }
                Err(Broken::Final(error)) => {
                    part.abandon_if_useful(&error);
                    return Err(error);
                }
            }
        }
    }

    fn stream(
        &self,
        file: &HubFile,
        part: &mut Part,
        source: &str,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), Broken> {
        if part.wanted().size == Some(part.len()) && part.len() > 0 {
            return Ok(()); // everything had arrived before
        }
        let mut range = match part.wanted().size {
            Some(size) if part.len() > 0 => Some(part.len()..size),
            _ => None,
        };
        if range.is_none() && part.len() > 0 {
            part.restart().map_err(Broken::Final)?;
        }
        loop {
            let events = self.spawn_stream(file, range.clone()).map_err(|e| Broken::Final(PartError::Content(e)))?;
            let asked = range.as_ref().map(|range| range.end - range.start);
            let mut ignored_range = false;
            let mut wrong_length = None;
            for event in events {
                match event {
                    // A server that ignores the range sends, and announces, the whole file.
                    Event::Start(announced) if asked.is_some() && announced != asked => {
                        ignored_range = true;
                        break;
                    }
                    Event::Start(announced) if asked.is_none() => {
                        part.expect(announced);
                        wrong_length = announced.filter(|announced| part.wanted().size != Some(*announced));
                    }
                    Event::Start(_) => {}
                    Event::Chunk(bytes) => {
                        // First the look at its beginning: "a login page" says more than a length.
                        part.write(&bytes).map_err(Broken::Final)?;
                        if let (Some(announced), Some(size)) = (wrong_length, part.wanted().size) {
                            let reason = format!("{source} has {announced} bytes, expected {size}");
                            return Err(Broken::Final(PartError::Content(reason)));
                        }
                        let wanted = part.wanted();
                        progress(Progress::Bytes { file: &wanted.name, done: part.len(), total: wanted.size, source });
                    }
                    Event::End => {
                        return match part.wanted().size {
                            Some(size) if part.len() < size => {
                                Err(Broken::Retry("the connection ended early".to_owned()))
                            }
                            _ => Ok(()),
                        };
                    }
                    Event::Refused(reason) => {
                        return Err(Broken::Final(PartError::Content(self.scrub(&reason))));
                    }
                    Event::Broken(reason) => return Err(Broken::Retry(self.scrub(&reason))),
                }
            }
            if !ignored_range {
                return Err(Broken::Retry("the connection thread ended".to_owned()));
            }
            part.restart().map_err(Broken::Final)?;
            range = None;
        }
    }

    fn spawn_stream(&self, file: &HubFile, range: Option<std::ops::Range<u64>>) -> Result<Receiver<Event>, String> {
        let (send, events) = sync_channel(CHANNEL);
        let (hub, file) = (self.clone(), file.clone());
        std::thread::Builder::new()
            .name("weaklink-download".to_owned())
            .spawn(move || match runtime() {
                Ok(runtime) => {
                    runtime.block_on(hub.send_stream(&file, range, &send));
                    // A name lookup that hangs must not keep us.
                    runtime.shutdown_background();
                }
                Err(reason) => drop(send.send(Event::Refused(reason))),
            })
            .map_err(|error| format!("cannot start a download thread: {error}"))?;
        Ok(events)
    }

    /// A closed channel means that nobody wants the rest.
    async fn send_stream(&self, file: &HubFile, range: Option<std::ops::Range<u64>>, send: &SyncSender<Event>) {
        let opened = tokio::time::timeout(self.deadlines.response, self.open_stream(file, range)).await;
        let (announced, mut stream) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(reason)) => return drop(send.send(Event::Refused(reason))),
            Err(_) => return drop(send.send(Event::Refused(self.silent(self.deadlines.response)))),
        };
        if send.send(Event::Start(announced)).is_err() {
            return;
        }
        loop {
            let event = match tokio::time::timeout(self.deadlines.stall, stream.next()).await {
                Ok(Some(Ok(bytes))) => Event::Chunk(bytes.as_ref().to_vec()),
                Ok(Some(Err(error))) => Event::Broken(root_cause(&error)),
                Ok(None) => Event::End,
                Err(_) => Event::Broken(self.silent(self.deadlines.stall)),
            };
            let last = !matches!(event, Event::Chunk(_));
            if send.send(event).is_err() || last {
                return;
            }
        }
    }

    async fn open_stream(
        &self,
        file: &HubFile,
        range: Option<std::ops::Range<u64>>,
    ) -> Result<(Option<u64>, impl Stream<Item = HFResult<impl AsRef<[u8]>>> + Unpin), String> {
        let (owner, name) = hf_hub::split_id(&file.repo);
        self.client()?
            .model(owner, name)
            .download_file_stream()
            .filename(file.path.as_str())
            .revision(file.revision.as_str())
            .maybe_range(range)
            .send()
            .await
            .map_err(|error| self.explain(file, &error))
    }

    fn bad_address(&self, reason: &str) -> String {
        format!("HF_ENDPOINT '{}' is no address such as https://huggingface.co: {reason}", self.endpoint)
    }

    /// Honours the proxy variables, except that no proxy can reach an address
    /// that means this machine.
    fn http(&self) -> reqwest::ClientBuilder {
        let http = reqwest::Client::builder()
            .connect_timeout(self.deadlines.connect)
            .user_agent(concat!("weaklink/", env!("CARGO_PKG_VERSION")));
        let host = self.host();
        if ["localhost", "127.0.0.1", "[::1]"].iter().any(|own| host == *own || host.starts_with(&format!("{own}:"))) {
            http.no_proxy()
        } else {
            http
        }
    }

    fn client(&self) -> Result<HFClient, String> {
        let http = self.http().build().map_err(|error| root_cause(&error))?;
        let builder = HFClient::builder().client(http).endpoint(&self.endpoint).cache_enabled(false);
        // One retry: a source that does not answer must not hold up the next one.
        let builder = builder.retry_max_attempts(1).retry_base_delay(Duration::from_millis(100));
        let builder = match &self.token {
            Some(token) => builder.token(token),
            None => builder,
        };
        builder.build().map_err(|error| self.bad_address(&root_cause(&error)))
    }

    async fn metadata_async(&self, file: &HubFile) -> Result<HubMeta, String> {
        let http = self
            .http()
            .timeout(self.deadlines.response)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| root_cause(&error))?;
        let mut url = reqwest::Url::parse(&self.endpoint).map_err(|e| self.bad_address(&e.to_string()))?;
        let (owner, name) = hf_hub::split_id(&file.repo);
        // One relative redirect leads from a repository's old name to its new one.
        let mut hops = 0;
        {
            let mut path = url.path_segments_mut().map_err(|()| self.bad_address("not an http address"))?;
            path.pop_if_empty().extend([owner, name, "resolve", &file.revision]).extend(file.path.split('/'));
        }
        loop {
            let mut request = http.head(url.clone());
            if let Some(token) = &self.token {
                request = request.bearer_auth(token);
            }
            let response = request.send().await.map_err(|error| self.unreachable(&error))?;
            let status = response.status().as_u16();
            let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
            let location = header("location").filter(|l| l.starts_with('/') && !l.starts_with("//"));
            match (status, location) {
                (300..=399, Some(location)) if hops < 5 => {
                    hops += 1;
                    url = url.join(&location).map_err(|e| format!("redirect: {e}"))?;
                }
                (200..=399, _) => {
                    let etag = header("x-linked-etag").or_else(|| header("etag"));
                    let etag = etag.map(|e| e.trim_start_matches("W/").trim_matches('"').to_ascii_lowercase());
                    let length = header("x-linked-size");
                    let length = if status < 300 { length.or_else(|| header("content-length")) } else { length };
                    return Ok(HubMeta {
                        size: length.and_then(|l| l.parse().ok()).filter(|size| *size > 0),
                        sha256: etag.filter(|e| e.len() == 64 && e.bytes().all(|b| b.is_ascii_hexdigit())),
                    });
                }
                (401 | 403, _) => return Err(self.denied(file, status)),
                (404, _) => return Err(self.missing(file)),
                _ => return Err(format!("{} answered with status {status}", self.host())),
            }
        }
    }

    fn explain(&self, file: &HubFile, error: &HFError) -> String {
        match error {
            HFError::AuthRequired { .. } => self.denied(file, 401),
            HFError::Forbidden { .. } => self.denied(file, 403),
            HFError::RepoNotFound { .. } | HFError::EntryNotFound { .. } | HFError::RevisionNotFound { .. } => {
                self.missing(file)
            }
            HFError::RateLimited { .. } => format!("{} asks for fewer requests (429); try later", self.host()),
            HFError::Http { context } => format!("{} answered with status {}", self.host(), context.status.as_u16()),
            HFError::Request { source, .. } => self.unreachable(source),
            other => format!("{}: {}", self.host(), root_cause(other)),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> String {
        let cause = root_cause(error);
        let hint = if cause.contains("ertificate") || cause.contains("UnknownIssuer") {
            "; where a proxy inspects TLS, name its CA in SSL_CERT_FILE"
        } else {
            ""
        };
        format!("{} cannot be reached: {cause}{hint}", self.host())
    }

    /// The hub answers 401 both for what needs a token and for what does not exist.
    fn denied(&self, file: &HubFile, status: u16) -> String {
        let token = if self.token.is_some() { "the token was refused" } else { "no token was sent" };
        format!(
            "{host} refuses {repo} ({status}; {token}): it is gated, private or does not exist; accept its licence at {endpoint}/{repo} and set HF_TOKEN",
            host = self.host(),
            repo = file.repo,
            endpoint = self.endpoint,
        )
    }

    fn missing(&self, file: &HubFile) -> String {
        format!("{} has no file {} in {} at revision {} (404)", self.host(), file.path, file.repo, file.revision)
    }

    fn silent(&self, after: Duration) -> String {
        format!("{} was silent for {:.1} s", self.host(), after.as_secs_f64())
    }

    /// Removes what must not be printed: tokens, passwords in addresses, and
    /// the signed queries of storage addresses.
    fn scrub(&self, text: &str) -> String {
        scrub(text, self.token.as_deref())
    }
}

impl Part {
    /// Keeps the bytes when what went wrong says nothing against them.
    fn abandon_if_useful(self, error: &PartError) {
        let unreached = matches!(error, PartError::Content(_)) && self.is_resumed();
        if unreached {
            self.abandon();
        }
    }
}

/// Expected content of a file, of which the hub may know more.
pub(super) fn wanted(name: &str, meta: HubMeta) -> Wanted {
    Wanted { name: name.to_owned(), size: meta.size, sha256: meta.sha256 }
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the network runtime: {error}"))
}

fn on_thread<T, F, Fut>(work: F) -> Result<T, String>
where
    T: Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = T>,
{
    let handle = std::thread::spawn(move || {
        let runtime = runtime()?;
        let result = runtime.block_on(work());
        runtime.shutdown_background();
        Ok(result)
    });
    handle.join().unwrap_or_else(|_| Err("the network thread failed".to_owned()))
}

/// The innermost cause: the outer ones repeat that a request failed.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

pub(super) fn scrub(text: &str, token: Option<&str>) -> String {
    let text = match token.filter(|token| !token.is_empty()) {
        Some(token) => text.replace(token, "***"),
        None => text.to_owned(),
    };
    let clean = |word: &str| {
        let mut word = word.to_owned();
        if let Some(at) = word.find("://") {
            let rest = &word[at + 3..];
            let authority = rest.split('/').next().unwrap_or(rest);
            if let Some(end) = authority.rfind('@') {
                word.replace_range(at + 3..at + 3 + end, "***");
            }
            if let Some(query) = word.find('?') {
                word.truncate(query);
            }
        }
        word
    };
    // Split at whitespace, which also puts everything on one line.
    text.split_whitespace().map(clean).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_printed() {
        let cases = [
            ("denied for hf_secret\nsorry", "denied for *** sorry"),
            ("get https://me:pw@mirror.example/x/y", "get https://***@mirror.example/x/y"),
            ("at https://cdn.example/a?X-Signature=abc&b=c) end", "at https://cdn.example/a end"),
        ];
        for (text, want) in cases {
            assert_eq!(scrub(text, Some("hf_secret")), want);
        }
        let hub = |endpoint: &str| Hub { endpoint: endpoint.into(), token: None, deadlines: Deadlines::default() };
        assert_eq!(hub("https://me:pw@mirror.example:8443/hf").host(), "mirror.example:8443");
        assert_eq!(hub("https://huggingface.co").host(), "huggingface.co");
    }
}
