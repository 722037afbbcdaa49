//! Drafts by copying: a sequence that repeats its own past tells what comes next.
//!
//! The longest end of the tokens that stands in them before is looked up, and what followed it
//! there is guessed to follow again (prompt lookup decoding, Saxena, 2023). A step computes the
//! guessed tokens beside the last known one, and the draws decide which of them stand; so a guess
//! costs time at worst, and never changes a text (Leviathan et al., 2023, with the draw fixed by
//! seed and output index in place of their rejection rule).

/// Fewest and most tokens that must have been said before. Two are said again by chance too
/// often; more than eight tell no better where to go on.
const SHORTEST: usize = 3;
const LONGEST: usize = 8;

/// Tokens that a sequence's first draft may have, and any.
pub const FIRST: usize = 4;
const MOST: usize = 16;

/// `room` tokens that followed the latest of the longest earlier occurrences of the end of
/// `tokens`; none if the last few tokens stand nowhere before. Where nothing is left to copy, the
/// sequence is repeating itself, and goes on to.
pub fn continuation(tokens: &[u32], room: usize) -> Vec<u32> {
    if room == 0 {
        return Vec::new();
    }
    let (mut best, mut longest) = (tokens.len(), SHORTEST - 1);
    for end in (1..tokens.len()).rev() {
        let common = tokens[..end].iter().rev().zip(tokens.iter().rev()).take(LONGEST).take_while(|(a, b)| a == b);
        let common = common.count();
        if common > longest {
            (best, longest) = (end, common);
            if longest == LONGEST {
                break;
            }
        }
    }
    tokens[best..].iter().copied().cycle().take(room).collect()
}

/// Tokens that the next draft may have, after one of `drafted` tokens of which `accepted` were
/// drawn: twice as many while all are, else one more than were.
pub fn next_reach(reach: usize, drafted: usize, accepted: usize) -> usize {
    if accepted == drafted { (2 * drafted).max(reach).min(MOST) } else { accepted + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_the_longest_matches_goes_on() {
        // "1 2 3" stands twice before: with a 9 before it, as at the end, and later with an 8.
        let tokens = [9, 1, 2, 3, 40, 41, 8, 1, 2, 3, 50, 51, 9, 1, 2, 3];
        assert_eq!(continuation(&tokens, 2), [40, 41]);
        // Without that 9 both are equally long: the later one.
        assert_eq!(continuation(&tokens[1..], 1), [50]);
    }

    #[test]
    fn a_draft_fills_its_room_and_repetition_goes_on() {
        let tokens = [1, 2, 3, 4, 1, 2, 3];
        assert_eq!(continuation(&tokens, 0), [0; 0]);
        assert_eq!(continuation(&tokens, 3), [4, 1, 2]);
        assert_eq!(continuation(&tokens, 6), [4, 1, 2, 3, 4, 1]);
        assert_eq!(continuation(&[7; 6], 3), [7; 3]);
    }

    #[test]
    fn chance_matches_and_short_pasts_give_none() {
        for tokens in [&[][..], &[1], &[1, 1], &[1, 2, 9, 1, 2]] {
            assert_eq!(continuation(tokens, 8), [0; 0], "{tokens:?}");
        }
    }

    #[test]
    fn the_reach_follows_what_is_drawn() {
        assert_eq!(next_reach(4, 4, 4), 8);
        assert_eq!(next_reach(MOST, MOST, MOST), MOST);
        assert_eq!(next_reach(8, 8, 2), 3);
        assert_eq!(next_reach(8, 8, 0), 1);
        // A draft cut short by its room says nothing against a longer one.
        assert_eq!(next_reach(8, 2, 2), 8);
    }
}
