//! `weaklink generate`: one completion, streamed.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;

use anyhow::{Context, bail};
use tokio::sync::mpsc;

use super::output::{emit, tell};
use super::{ModelArgs, model};
use crate::engine::load::{CONTEXT, LoadOptions};
use crate::engine::prompt_ids;
use crate::generate::{Completion, Finish, Grammar, Message, Prompt, Request, Role, Sampling};
use crate::terminal::plain_lines;

/// Make one completion and print it as it grows
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weaklink generate 'Name three rivers.' --temperature 0
  weaklink generate 'Is the sea salty?' --regex '(yes|no)'
  weaklink generate 'Describe a river as JSON.' --json-schema river.json
  weaklink generate 'Add two numbers.' --lark sum.lark      # start: /[0-9]+/ \"+\" /[0-9]+/")]
pub(crate) struct GenerateArgs {
    /// What the user says
    prompt: String,
    /// Instructions before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Continue the prompt as plain text, without the chat template
    #[arg(long, conflicts_with = "system")]
    raw: bool,
    /// At most this many tokens
    #[arg(long, default_value_t = 256, value_name = "N", allow_negative_numbers = true)]
    max_tokens: usize,
    /// 0 takes the likeliest token each time
    #[arg(long, default_value_t = 0.7, value_name = "T", allow_negative_numbers = true)]
    temperature: f32,
    /// Draw among the K likeliest tokens only
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Draw among the likeliest tokens that make up this probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// End before this string (may be given more than once)
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Hold the text to this JSON schema
    #[arg(long, value_name = "FILE", group = "grammar")]
    json_schema: Option<PathBuf>,
    /// Hold the text to this regular expression, from its beginning to its end
    #[arg(long, value_name = "RE", group = "grammar")]
    regex: Option<String>,
    /// Hold the text to this grammar in llguidance's dialect of Lark
    #[arg(long, value_name = "FILE", group = "grammar")]
    lark: Option<PathBuf>,
    /// The same seed gives the same text
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    seed: u64,
    /// Print one JSON document instead of the text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

pub(crate) fn run(args: GenerateArgs) -> anyhow::Result<ExitCode> {
    let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p };
    crate::engine::sampler::check(&sampling)?;
    if args.max_tokens == 0 {
        bail!("--max-tokens 0 leaves nothing to generate; give 1 or more");
    }
    let grammar = grammar(&args)?;
    let model = model::open(&args.model)?;
    if !args.raw && !model.text.has_template() {
        bail!("{} has no chat template (a base model?); use --raw to continue the prompt as plain text", model.name);
    }
    let prompt = if args.raw {
        let mut ids: Vec<u32> = model.text.bos().into_iter().collect();
        ids.extend(model.text.encode(&args.prompt, false)?);
        Prompt::Tokens(ids)
    } else {
        let system = args.system.map(|text| Message::new(Role::System, text));
        Prompt::Messages(system.into_iter().chain([Message::new(Role::User, args.prompt)]).collect())
    };
    let request = Request {
        prompt,
        max_tokens: args.max_tokens,
        sampling,
        stop: args.stop,
        grammar,
        seed: args.seed,
        logprobs: None,
    };
    // A prompt that cannot be rendered or is too long is the engine's to refuse.
    let prompt_tokens = prompt_ids(&model.text, &request.prompt).map_or(0, |ids| ids.len());
    let needed = prompt_tokens.saturating_add(args.max_tokens);
    let context = (prompt_tokens > 0 && needed <= CONTEXT).then_some(needed);
    let options = LoadOptions { batch: 1, threads: model::threads(&args.model.compute)?, context, expected: None };
    if args.model.compute.verbose > 0 {
        tell(&format!("weaklink: {}", model.plan_memory(&options)?));
    }
    let loaded = model.start(&options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let completion = runtime.block_on(async {
        let (pieces, received) = mpsc::unbounded_channel();
        let mut completion = pin!(loaded.handle.stream(request, pieces));
        let mut printing = pin!(print_pieces(received, args.json));
        tokio::select! {
            biased;
            read = &mut printing => {
                if !read? {
                    return anyhow::Ok(None);
                }
                Ok(Some(completion.await?))
            }
            completion = &mut completion => {
                printing.await?;
                Ok(Some(completion?))
            }
        }
    })?;
    let Some(completion) = completion else { return Ok(ExitCode::SUCCESS) };
    if args.json {
        emit(&(serde_json::to_string(&completion)? + "\n"))?;
    } else {
        emit("\n")?;
        if args.model.compute.verbose > 0 {
            summary(&completion);
        } else if completion.finish == Finish::Length {
            tell(&format!("weaklink: cut at {} tokens; --max-tokens allows more", completion.generated_tokens));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn grammar(args: &GenerateArgs) -> anyhow::Result<Option<Grammar>> {
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    Ok(if let Some(path) = &args.json_schema {
        let schema = serde_json::from_str(&read(path)?);
        Some(Grammar::JsonSchema(schema.with_context(|| format!("{} is not JSON", path.display()))?))
    } else if let Some(path) = &args.lark {
        Some(Grammar::Lark(read(path)?))
    } else {
        args.regex.clone().map(Grammar::Regex)
    })
}

/// Prints text as it comes; on a terminal without its control characters.
///
/// Ends when nobody reads any more; whoever waits for the completion may stop too.
async fn print_pieces(mut pieces: mpsc::UnboundedReceiver<String>, quiet: bool) -> anyhow::Result<bool> {
    let terminal = std::io::stdout().is_terminal();
    while let Some(piece) = pieces.recv().await {
        if !quiet && !emit(&if terminal { plain_lines(&piece) } else { piece })? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn summary(completion: &Completion) {
    tell(&format!(
        "{} prompt tokens ({} cached), {} generated ({} of {} guessed ahead) in {:.2} s, ended by {}",
        completion.prompt_tokens,
        completion.cached_tokens,
        completion.generated_tokens,
        completion.accepted_tokens,
        completion.drafted_tokens,
        completion.seconds,
        match completion.finish {
            Finish::Stop => "the model",
            Finish::Length => "the token limit",
            Finish::GrammarEnd => "the grammar",
        }
    ));
}
