//! A hub that answers as a test wants it to.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the server was asked.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: HashMap<String, String>,
}

/// What it does.
pub(super) enum Reply {
    /// The bytes with this status; a range is honoured for 200.
    Body(u16, Vec<u8>),
    /// Announces all, sends the first `n` (of the range, if one is asked for), closes.
    Cut(Vec<u8>, usize),
    /// Announces all, sends the first `n`, then nothing, for ever.
    Stall(Vec<u8>, usize),
    /// The whole file, whatever range is asked for.
    NoRange(Vec<u8>),
    /// Headers without a body.
    Head(u16, Vec<(&'static str, String)>),
    /// Says nothing.
    Silence,
}

pub(super) struct Server {
    pub(super) endpoint: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub(super) fn start(handler: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("address"));
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let log = Arc::clone(&asked);
        let handler = Arc::new(handler);
        // Ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (handler, log) = (Arc::clone(&handler), Arc::clone(&log));
                std::thread::spawn(move || answer(stream, &*handler, &log));
            }
        });
        Server { endpoint, asked }
    }

    pub(super) fn gets(&self) -> Vec<Asked> {
        self.asked.lock().expect("log").iter().filter(|a| a.method == "GET").cloned().collect()
    }

    pub(super) fn count(&self) -> usize {
        self.asked.lock().expect("log").len()
    }
}

fn answer(stream: TcpStream, handler: &dyn Fn(&Asked) -> Reply, log: &Mutex<Vec<Asked>>) {
    let mut reader = BufReader::new(stream.try_clone().expect("clone"));
    let mut stream = stream;
    let mut line = String::new();
    if reader.read_line(&mut line).is_err() {
        return;
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return };
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.trim().split_once(": ") {
            headers.insert(name.to_lowercase(), value.to_owned());
        }
    }
    let asked = Asked { method, path, headers };
    log.lock().expect("log").push(asked.clone());
    let range = |body: &[u8]| {
        let (start, end) = asked.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let (start, end): (usize, usize) = (start.parse().ok()?, end.parse().ok()?);
        (start <= end && end < body.len()).then_some(start..end + 1)
    };
    let head_only = asked.method == "HEAD";
    let mut send = |status: u16, body: &[u8], n: usize| {
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        let _ = stream.write_all(head.as_bytes());
        if !head_only {
            let _ = stream.write_all(&body[..n.min(body.len())]);
        }
        let _ = stream.flush();
    };
    let ranged = |body: Vec<u8>| match range(&body) {
        Some(range) => (206, body[range].to_vec()),
        None => (200, body),
    };
    match handler(&asked) {
        Reply::Body(200, body) => {
            let (status, body) = ranged(body);
            send(status, &body, body.len());
        }
        Reply::Body(status, body) => send(status, &body, body.len()),
        Reply::NoRange(body) => send(200, &body, body.len()),
        Reply::Cut(body, n) => {
            let (status, body) = ranged(body);
            send(status, &body, n);
        }
        Reply::Stall(body, n) => {
            let (status, body) = ranged(body);
            send(status, &body, n);
            std::thread::sleep(Duration::from_secs(60));
        }
        Reply::Head(status, headers) => {
            let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let _ = stream.write_all(format!("HTTP/1.1 {status} X\r\n{lines}connection: close\r\n\r\n").as_bytes());
        }
        Reply::Silence => std::thread::sleep(Duration::from_secs(60)),
    }
}
