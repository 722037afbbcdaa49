//! The program: see `weaklink --help`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    weaklink::cli::main()
}
