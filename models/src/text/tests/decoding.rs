use proptest::prelude::*;

use super::*;

/// What the stream gives for each token, and whether it ends inside a character.
fn streamed(text: &Text, ids: &[u32]) -> (Vec<String>, bool) {
    let mut stream = text.stream();
    let pieces = ids.iter().map(|&id| stream.push(id)).collect();
    (pieces, stream.finish())
}

#[test]
fn characters_come_whole() {
    let text = text(&byte_level());
    let cases: [(&[u32], &[&str], bool); 6] = [
        (&[0xf0, 0x9f, 0x98, 0x80, 0x21], &["", "", "", "😀", "!"], false),
        // Cut inside the character: the valid part stays and the cut is told.
        (&[HI, 0xf0, 0x9f, 0x98], &["hi", "", "", ""], true),
        // A control token between the bytes changes nothing.
        (&[0xc3, END, 0xa9], &["", "", "é"], false),
        // A byte that cannot continue: certain as soon as the next one is there.
        (&[0xc3, 0x41], &["", "\u{fffd}A"], false),
        (&[0xff, 0x41], &["\u{fffd}", "A"], false),
        (&[], &[], false),
    ];
    for (ids, expected, cut) in cases {
        assert_eq!(streamed(&text, ids), (expected.iter().map(|s| (*s).to_owned()).collect(), cut), "{ids:?}");
    }
}

#[test]
fn ids_beyond_the_vocabulary_add_nothing() {
    let text = text(&byte_level());
    assert_eq!(text.decode(&[HI, 9999, u32::MAX, SPACE_HI]), "hi hi");
    assert_eq!(text.token_text(9999), None);
    assert_eq!(text.token_text(SPACE_HI), Some("Ġhi"));
    assert_eq!(text.token_bytes(SPACE_HI), b" hi");
    assert_eq!(text.vocab_size(), 264);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn stream_and_decode_agree_with_the_bytes(ids in prop::collection::vec(0_u32..264, 0..40)) {
        let text = text(&byte_level());
        let (pieces, cut) = streamed(&text, &ids);
        prop_assert_eq!(pieces.concat(), text.decode(&ids));
        // The standard library's reading of the same bytes, apart from the tail.
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| text.token_bytes(id)).copied().collect();
        let mut whole = String::from_utf8_lossy(&bytes).into_owned();
        if cut {
            prop_assert_eq!(whole.pop(), Some('\u{fffd}'));
        }
        prop_assert_eq!(pieces.concat(), whole);
    }

    #[test]
    fn any_text_survives(input in any::<String>()) {
        let text = text(&byte_level());
        prop_assert_eq!(text.decode(&text.encode(&input, false)?), input);
    }
}
