//! How much memory there is: the machine's, or less where a container has a limit.

use std::fs;

use serde::Serialize;

/// Bytes, as far as the system says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Of the machine or the container.
    pub total: Option<u64>,
    /// That can be had without swapping.
    pub available: Option<u64>,
}

impl Memory {
    /// As it is now: `/proc/meminfo`, narrowed by the limit of a control group (version 2).
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).ok();
        let group = |name: &str| text(&format!("/sys/fs/cgroup/{name}"));
        let number = |name: &str| group(name)?.trim().parse::<u64>().ok();
        let machine = text("/proc/meminfo").map(|text| parse_meminfo(&text)).unwrap_or_default();
        // File pages that nobody has used lately are given back when memory is short.
        let idle = group("memory.stat").and_then(|text| field(&text, "inactive_file")).unwrap_or(0);
        let used = number("memory.current").map(|used| used.saturating_sub(idle));
        machine.within_limit(number("memory.max"), used)
    }

    fn within_limit(self, limit: Option<u64>, used: Option<u64>) -> Self {
        let Some(limit) = limit.filter(|limit| self.total.is_none_or(|total| *limit < total)) else { return self };
        let left = limit.saturating_sub(used.unwrap_or(0));
        Self { total: Some(limit), available: Some(self.available.map_or(left, |free| free.min(left))) }
    }
}

fn parse_meminfo(text: &str) -> Memory {
    let bytes = |name: &str| field(text, name)?.checked_mul(1024);
    Memory { total: bytes("MemTotal:"), available: bytes("MemAvailable:") }
}

/// The most memory that this process has held at once, in bytes, as far as the system says.
pub(crate) fn peak_rss() -> Option<u64> {
    field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")?.checked_mul(1024)
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| if words.next()? == name { words.next()?.parse().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       24541720 kB\nMemFree:        13877328 kB\nMemAvailable:   23458016 kB\n";
        let memory = parse_meminfo(text);
        assert_eq!(memory, Memory { total: Some(25_130_721_280), available: Some(24_021_008_384) });
        assert_eq!(parse_meminfo("MemTotal: many kB\n"), Memory::default());
        assert_eq!(parse_meminfo(""), Memory::default());
        assert_eq!(field("anon 5\ninactive_file 77\n", "inactive_file"), Some(77));
    }

    #[test]
    fn a_container_limit_narrows_the_memory() {
        let machine = Memory { total: Some(100), available: Some(60) };
        assert_eq!(machine.within_limit(None, Some(5)), machine);
        assert_eq!(machine.within_limit(Some(1_000), Some(5)), machine);
        assert_eq!(machine.within_limit(Some(50), Some(5)), Memory { total: Some(50), available: Some(45) });
        assert_eq!(machine.within_limit(Some(50), Some(70)).available, Some(0));
        assert_eq!(Memory::default().within_limit(Some(50), None).available, Some(50));
    }
}
