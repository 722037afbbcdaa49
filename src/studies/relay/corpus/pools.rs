//! The synthetic pools that values are drawn from. They are far larger than what one item takes.

use rand_chacha::rand_core::RngCore;

use crate::stats::draw::below;

/// A pool of values of one form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pool {
    /// `Mara Ilves`: 64 × 64.
    Person,
    /// `8443`: 2,000 to 9,999.
    Port,
    /// `48,517`: 10,000 to 99,999 with its thousands separator.
    Amount,
    /// `7.43`: 0.11 to 9.99, never ending in 0.
    Percent,
    /// `v4.18.2`.
    Version,
    /// `PX-4821`.
    Ticket,
    /// `K4-ORCHID`.
    Code,
    /// `14 March 2027`.
    Date,
    /// `14:35`.
    Time,
    /// `amber ledger`: the object of a prohibition, 40 × 32.
    Object,
}

impl Pool {
    pub(super) fn draw(self, rng: &mut impl RngCore) -> String {
        match self {
            Pool::Person => format!("{} {}", pick(rng, FIRST), pick(rng, LAST)),
            Pool::Port => number(rng, 2000, 9999).to_string(),
            Pool::Amount => {
                let n = number(rng, 10_000, 99_999);
                format!("{},{:03}", n / 1000, n % 1000)
            }
            Pool::Percent => format!("{}.{}{}", number(rng, 0, 9), number(rng, 1, 9), number(rng, 1, 9)),
            Pool::Version => format!("v{}.{}.{}", number(rng, 1, 9), number(rng, 0, 39), number(rng, 0, 19)),
            Pool::Ticket => format!("{}{}-{}", pick(rng, LETTERS), pick(rng, LETTERS), number(rng, 1000, 9999)),
            Pool::Code => format!("{}{}-{}", pick(rng, LETTERS), number(rng, 2, 9), pick(rng, WORDS)),
            Pool::Date => format!("{} {} {}", number(rng, 1, 28), pick(rng, MONTHS), number(rng, 2027, 2034)),
            Pool::Time => format!("{:02}:{:02}", number(rng, 0, 23), number(rng, 1, 59)),
            Pool::Object => format!("{} {}", pick(rng, ADJECTIVES), pick(rng, OBJECTS)),
        }
    }
}

fn number(rng: &mut impl RngCore, low: u32, high: u32) -> u32 {
    low + below(rng, high - low + 1)
}

fn pick(rng: &mut impl RngCore, list: &[&'static str]) -> &'static str {
    list[below(rng, list.len() as u32) as usize]
}

#[rustfmt::skip]
pub(super) const FIRST: &[&str] = &[
    "Mara", "Deniz", "Jonas", "Aiko", "Lena", "Oskar", "Ruth", "Tomas", "Ines", "Pavel", "Noor", "Sven", "Yara", "Emil",
    "Tove", "Karim", "Alba", "Bruno", "Celia", "Dario", "Elif", "Farid", "Greta", "Hugo", "Ilse", "Joana", "Kofi", "Livia",
    "Milan", "Nadia", "Otto", "Priya", "Quinn", "Rafael", "Selma", "Tariq", "Ulla", "Viktor", "Wanda", "Ximena", "Yusuf",
    "Zofia", "Anselm", "Birgit", "Caspar", "Dagny", "Edgar", "Fumiko", "Goran", "Hedda", "Ibrahim", "Judit", "Kaspar",
    "Leila", "Marek", "Nuria", "Olena", "Pilar", "Ramon", "Signe", "Teodor", "Ursula", "Vilma", "Wesley",
];
#[rustfmt::skip]
pub(super) const LAST: &[&str] = &[
    "Ilves", "Okafor", "Wren", "Brandt", "Fischer", "Nyman", "Amsel", "Vrba", "Calder", "Hruby", "Sato", "Lind", "Moreau",
    "Petrov", "Quist", "Adeyemi", "Bakker", "Castellan", "Dvorak", "Ekholm", "Ferrante", "Grimaldi", "Haddad", "Iversen",
    "Jansen", "Kovacs", "Laurent", "Mbeki", "Novak", "Ortega", "Pereira", "Rahman", "Sandoval", "Takeda", "Ueda", "Vasquez",
    "Weber", "Xenakis", "Yilmaz", "Zeller", "Almeida", "Bergman", "Chaudhry", "Dimitrov", "Eriksen", "Fontaine", "Gallo",
    "Horvat", "Ivanova", "Jokinen", "Keller", "Lombardi", "Marchetti", "Nakamura", "Olsen", "Pichler", "Quiroga", "Rossi",
    "Steiner", "Tanaka", "Urbina", "Voss", "Wagner", "Zimmer",
];
const LETTERS: &[&str] = &["B", "C", "D", "F", "G", "H", "J", "K", "L", "M", "N", "P", "Q", "R", "S", "T", "W", "X"];
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "ORCHID", "HERON", "OSPREY", "CEDAR", "BASALT", "LUPIN", "MARLIN", "TOPAZ", "JUNIPER", "FALCON", "QUARTZ", "THISTLE",
    "BADGER", "CYPRESS", "DOLPHIN", "ELDER", "FENNEL", "GRANITE", "HAZEL", "IBEX", "JASPER", "KESTREL", "LARCH", "MAGPIE",
    "NUTMEG", "OPAL", "PELICAN", "RAVEN", "SAFFRON", "TAMARIND", "URCHIN", "VIOLET", "WALNUT", "YARROW", "ZINNIA", "ACACIA",
    "BRAMBLE", "CLOVER", "DAMSON", "EGRET",
];
const MONTHS: &[&str] = &[
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
#[rustfmt::skip]
const ADJECTIVES: &[&str] = &[
    "amber", "azure", "bronze", "cobalt", "copper", "coral", "crimson", "ebony", "emerald", "golden", "grey", "hollow",
    "indigo", "ivory", "jade", "lilac", "maroon", "mauve", "narrow", "ochre", "olive", "onyx", "pearl", "plain", "purple",
    "quiet", "ruby", "russet", "sable", "scarlet", "sepia", "silver", "slate", "teal", "umber", "velvet", "vermilion",
    "white", "woven", "yellow",
];
#[rustfmt::skip]
const OBJECTS: &[&str] = &[
    "ledger", "archive", "relay", "console", "lantern", "beacon", "cabinet", "turbine", "registry", "vault", "mirror",
    "conveyor", "terminal", "compressor", "catalogue", "gantry", "furnace", "manifold", "sensor", "antenna", "locker",
    "chamber", "pallet", "barrel", "trolley", "hopper", "reactor", "scanner", "monitor", "gauge", "valve", "pump",
];
