//! The generator: (corpus seed, item index) → item, and nothing else feeds it.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::pools::Pool;
use super::{AnswerType, Fact, FactKind, Item};
use crate::score::text::Normalized;
use crate::stats::draw::below;

/// The domains of the generated briefs; item `index` is of domain `index % 3`.
pub const DOMAINS: [&str; 3] = ["migration", "incident", "logistics"];

/// Item `index` of the corpus with this seed: the same for every format, model and machine.
///
/// # Panics
/// If the item fails its own check, which is a bug of the templates.
pub fn generate(seed: u64, index: u64) -> Item {
    let domain = (index % DOMAINS.len() as u64) as usize;
    let taken = wordings(&exemplar_of(seed, domain));
    let id = format!("{}-{seed}-{index}", DOMAINS[domain]);
    build(domain, id, &mut generator(seed, index, b"weaklink.corpus."), taken)
}

/// The worked example that stands before `item` at one shot: an item of the same domain that is not in the corpus and
/// shares no value with any item that [`generate`] makes from this seed.
pub fn exemplar(seed: u64, item: &Item) -> Item {
    let domain = DOMAINS.iter().position(|&name| Some(name) == item.domain.as_deref());
    exemplar_of(seed, domain.unwrap_or(0))
}

fn exemplar_of(seed: u64, domain: usize) -> Item {
    let id = format!("{}-{seed}-exemplar", DOMAINS[domain]);
    build(domain, id, &mut generator(seed, domain as u64, b"weaklink.example"), Vec::new())
}

fn generator(seed: u64, index: u64, purpose: &[u8; 16]) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&index.to_le_bytes());
    key[16..].copy_from_slice(purpose);
    ChaCha8Rng::from_seed(key)
}

/// What a drawn value may not clash with: every wording and every distractor, but not the answers yes and no.
fn wordings(item: &Item) -> Vec<Plain> {
    let texts = item.facts.iter().flat_map(|fact| [fact.wording(), fact.distractor.as_str()]);
    texts.filter(|text| !matches!(*text, "yes" | "no")).map(Plain::new).collect()
}

fn build(domain: usize, id: String, rng: &mut ChaCha8Rng, mut taken: Vec<Plain>) -> Item {
    let template = &TEMPLATES[domain];
    let title = template.title.replace("{}", template.things[below(rng, template.things.len() as u32) as usize]);
    let mut brief = format!("Handoff brief: {title}.");
    let mut facts = Vec::with_capacity(template.slots.len());
    let mut counts = [0; FactKind::ALL.len()];
    for slot in template.slots {
        let surface = fresh(slot.pool, rng, &mut taken);
        let (question, value, distractor) = match slot.pool {
            Pool::Object => {
                let (question, value, other) =
                    if below(rng, 2) == 0 { (slot.question, "no", "yes") } else { (slot.turned_question, "yes", "no") };
                (question.replace("{}", &surface), value.to_owned(), other.to_owned())
            }
            pool => (slot.question.to_owned(), surface.clone(), fresh(pool, rng, &mut taken)),
        };
        brief.push(' ');
        brief.push_str(&slot.sentence.replace("{}", &surface));
        let count = &mut counts[slot.kind as usize];
        *count += 1;
        facts.push(Fact {
            id: format!("{}_{count}", format!("{:?}", slot.kind).to_lowercase()),
            kind: slot.kind,
            subject: slot.subject.to_owned(),
            relation: slot.relation.to_owned(),
            value,
            surface,
            question,
            answer_type: answer_type(slot.pool),
            distractor,
            aliases: Vec::new(),
        });
    }
    let item = Item { id, title, domain: Some(DOMAINS[domain].to_owned()), brief, facts };
    if let Err(what) = self_check(&item) {
        panic!("generated item {} is not sound: {what}", item.id);
    }
    item
}

fn answer_type(pool: Pool) -> AnswerType {
    match pool {
        Pool::Person => AnswerType::Name,
        Pool::Port | Pool::Amount | Pool::Percent => AnswerType::Number,
        Pool::Version | Pool::Ticket | Pool::Code => AnswerType::Code,
        Pool::Date | Pool::Time => AnswerType::Date,
        Pool::Object => AnswerType::YesNo,
    }
}

/// A value that clashes with none drawn before. The pools are so large that a second try is rare.
fn fresh(pool: Pool, rng: &mut ChaCha8Rng, taken: &mut Vec<Plain>) -> String {
    loop {
        let value = pool.draw(rng);
        let plain = Plain::new(&value);
        if !taken.iter().any(|other| plain.clashes(other)) {
            taken.push(plain);
            return value;
        }
    }
}

/// A wording in lower case without thousands separators.
struct Plain {
    text: String,
    /// Two words, as a person's name or an object has.
    is_pair: bool,
}

impl Plain {
    fn new(text: &str) -> Self {
        let text = text.to_lowercase().replace(',', "");
        let words = |part: &str| part.chars().all(char::is_alphabetic);
        let is_pair = text.split(' ').count() == 2 && text.split(' ').all(words);
        Self { text, is_pair }
    }

    /// Whether one contains the other, or two pairs share a word: such two could not be told apart.
    fn clashes(&self, other: &Plain) -> bool {
        self.text.contains(&other.text)
            || other.text.contains(&self.text)
            || (self.is_pair
                && other.is_pair
                && self.text.split(' ').any(|word| other.text.split(' ').any(|theirs| word == theirs)))
    }
}

/// Checks what the generator promises beyond [`Item::validate`]: each kind at least once, each wording exactly once in
/// the brief, no wording or distractor within another, no two questions or keys alike.
pub(super) fn self_check(item: &Item) -> Result<(), String> {
    item.validate()?;
    let taken = wordings(item);
    for (i, a) in taken.iter().enumerate() {
        if let Some(b) = taken[..i].iter().find(|b| a.clashes(b)) {
            return Err(format!("{:?} and {:?} cannot be told apart", a.text, b.text));
        }
    }
    let brief = Normalized::new(&item.brief);
    let lower = item.brief.to_lowercase().replace(',', "");
    for kind in FactKind::ALL {
        if !item.facts.iter().any(|fact| fact.kind == kind) {
            return Err(format!("no fact of kind {kind:?}"));
        }
    }
    for (i, fact) in item.facts.iter().enumerate() {
        let wording = fact.wording();
        let places = brief.find_all(&Normalized::new(wording)).len();
        if places != 1 || !item.brief.contains(&fact.surface) {
            return Err(format!("{wording:?} stands {places} times in the brief"));
        }
        let plain = Plain::new(&fact.distractor);
        if fact.answer_type != AnswerType::YesNo && lower.contains(&plain.text) {
            return Err(format!("the distractor {:?} occurs in the brief", fact.distractor));
        }
        for other in &item.facts[..i] {
            if fact.question == other.question {
                return Err(format!("the question {:?} is asked twice", fact.question));
            }
            if (&fact.subject, &fact.relation) == (&other.subject, &other.relation) {
                return Err(format!("two facts are about {:?} {:?}", fact.subject, fact.relation));
            }
        }
    }
    Ok(())
}

/// One sentence of a template; `{}` is the value. A prohibition with an object has two questions: the first is answered
/// by no, the turned one by yes, and one of them is drawn, so that an answer of "no" throughout is right half the time.
struct Slot {
    kind: FactKind,
    pool: Pool,
    subject: &'static str,
    relation: &'static str,
    sentence: &'static str,
    question: &'static str,
    turned_question: &'static str,
}

struct Template {
    title: &'static str,
    things: &'static [&'static str],
    slots: &'static [Slot],
}

const fn slot(
    kind: FactKind,
    pool: Pool,
    key: [&'static str; 2],
    sentence: &'static str,
    question: &'static str,
) -> Slot {
    Slot { kind, pool, subject: key[0], relation: key[1], sentence, question, turned_question: "" }
}

const fn forbidden(
    key: [&'static str; 2],
    sentence: &'static str,
    question: &'static str,
    turned_question: &'static str,
) -> Slot {
    Slot {
        kind: FactKind::Prohibition,
        pool: Pool::Object,
        subject: key[0],
        relation: key[1],
        sentence,
        question,
        turned_question,
    }
}

use FactKind::{Constraint, Deadline, Dependency, Owner, Prohibition, Quantity};

#[rustfmt::skip]
const TEMPLATES: [Template; 3] = [
    Template {
        title: "migration of the {} service to a new cluster",
        things: &["billing", "booking", "search", "checkout", "invoicing", "messaging", "payroll", "profile", "shipping", "ticketing"],
        slots: &[
            slot(Owner, Pool::Person, ["cutover", "owner"], "{} owns the cutover.", "Who owns the cutover?"),
            slot(Owner, Pool::Person, ["rollback", "lead"], "{} is the rollback lead.", "Who is the rollback lead?"),
            slot(Quantity, Pool::Port, ["service", "port"], "The service must listen on port {}.", "On which port must the service listen?"),
            slot(Quantity, Pool::Amount, ["migration", "budget in dollars"], "The migration budget is {} dollars.", "How many dollars is the migration budget?"),
            slot(Deadline, Pool::Date, ["cutover", "deadline"], "The cutover must finish before {}.", "Before which date must the cutover finish?"),
            slot(Deadline, Pool::Time, ["status report", "due at utc"], "The daily status report is due at {} UTC.", "At what time UTC is the daily status report due?"),
            slot(Constraint, Pool::Percent, ["error rate", "maximum percent"], "The error rate may not exceed {} percent.", "Which percentage may the error rate not exceed?"),
            slot(Constraint, Pool::Code, ["data", "required region"], "All data must stay in region {}.", "In which region must all data stay?"),
            slot(Dependency, Pool::Ticket, ["schema change", "depends on ticket"], "The schema change depends on ticket {}.", "On which ticket does the schema change depend?"),
            slot(Dependency, Pool::Version, ["cache warm-up", "depends on image"], "The cache warm-up depends on image {}.", "On which image does the cache warm-up depend?"),
            slot(Prohibition, Pool::Person, ["customer emails", "forbidden before approval by"], "Customer emails must not be sent before {} approves them.", "Before whose approval must customer emails not be sent?"),
            forbidden(["cutover", "prohibited restart"], "Nobody may restart the {} during the cutover.", "May anyone restart the {} during the cutover?", "Is it forbidden to restart the {} during the cutover?"),
        ],
    },
    Template {
        title: "response to the outage of the {} platform",
        things: &["analytics", "banking", "chat", "delivery", "gaming", "identity", "lending", "mapping", "payment", "video"],
        slots: &[
            slot(Owner, Pool::Person, ["incident", "commander"], "{} is the incident commander.", "Who is the incident commander?"),
            slot(Owner, Pool::Person, ["press enquiries", "contact"], "{} answers all press enquiries.", "Who answers all press enquiries?"),
            slot(Quantity, Pool::Amount, ["outage", "affected accounts"], "The outage affects {} accounts.", "How many accounts does the outage affect?"),
            slot(Quantity, Pool::Version, ["hotfix", "release version"], "The hotfix is released as {}.", "As which version is the hotfix released?"),
            slot(Deadline, Pool::Date, ["hotfix", "deadline"], "The hotfix must be live by {}.", "By which date must the hotfix be live?"),
            slot(Deadline, Pool::Time, ["status update", "due at utc"], "The next status update is due at {} UTC.", "At what time UTC is the next status update due?"),
            slot(Constraint, Pool::Percent, ["packet loss", "maximum percent"], "Packet loss must stay below {} percent.", "Below which percentage must packet loss stay?"),
            slot(Constraint, Pool::Code, ["traffic", "required gateway"], "All traffic must pass through gateway {}.", "Through which gateway must all traffic pass?"),
            slot(Dependency, Pool::Ticket, ["failover", "depends on change request"], "The failover depends on change request {}.", "On which change request does the failover depend?"),
            slot(Dependency, Pool::Code, ["restore", "depends on snapshot"], "The restore depends on snapshot {}.", "On which snapshot does the restore depend?"),
            slot(Prohibition, Pool::Person, ["server logs", "forbidden before approval by"], "Server logs must not be shared before {} agrees.", "Before whose agreement must server logs not be shared?"),
            forbidden(["investigation", "prohibited reboot"], "Nobody may reboot the {} during the investigation.", "May anyone reboot the {} during the investigation?", "Is it forbidden to reboot the {} during the investigation?"),
        ],
    },
    Template {
        title: "delivery of the {} to the northern depot",
        things: &["ambulance parts", "field kitchens", "generators", "laboratory glass", "medical stocks", "rail switches", "solar panels", "tents", "vaccines", "water filters"],
        slots: &[
            slot(Owner, Pool::Person, ["convoy", "coordinator"], "{} coordinates the convoy.", "Who coordinates the convoy?"),
            slot(Owner, Pool::Person, ["customs papers", "signatory"], "{} signs the customs papers.", "Who signs the customs papers?"),
            slot(Quantity, Pool::Amount, ["shipment", "weight in kilograms"], "The shipment weighs {} kilograms.", "How many kilograms does the shipment weigh?"),
            slot(Quantity, Pool::Port, ["driver", "radio channel"], "Drivers use radio channel {}.", "Which radio channel do drivers use?"),
            slot(Deadline, Pool::Date, ["shipment", "arrival deadline"], "The shipment must arrive before {}.", "Before which date must the shipment arrive?"),
            slot(Deadline, Pool::Time, ["dock", "closes at"], "The loading dock closes at {}.", "At what time does the loading dock close?"),
            slot(Constraint, Pool::Percent, ["humidity", "maximum percent"], "Humidity must stay below {} percent.", "Below which percentage must humidity stay?"),
            slot(Constraint, Pool::Code, ["truck", "required route"], "All trucks must take route {}.", "Which route must all trucks take?"),
            slot(Dependency, Pool::Ticket, ["border crossing", "depends on permit"], "The border crossing depends on permit {}.", "On which permit does the border crossing depend?"),
            slot(Dependency, Pool::Code, ["ferry leg", "depends on vessel"], "The ferry leg depends on vessel {}.", "On which vessel does the ferry leg depend?"),
            slot(Prohibition, Pool::Person, ["seals", "forbidden before inspection by"], "Seals must not be broken before {} inspects them.", "Before whose inspection must seals not be broken?"),
            forbidden(["transit", "prohibited opening"], "Nobody may open the {} during transit.", "May anyone open the {} during transit?", "Is it forbidden to open the {} during transit?"),
        ],
    },
];
