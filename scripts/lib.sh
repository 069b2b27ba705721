# Shared by the scripts beside it: messages, and the check of the Rust toolchain. Sourced, never run.
# shellcheck shell=bash

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    c_bold=$'\e[1m' c_dim=$'\e[2m' c_red=$'\e[31m' c_green=$'\e[32m' c_off=$'\e[0m'
else
    c_bold='' c_dim='' c_red='' c_green='' c_off=''
fi
me=$(basename "$0")

# One line of progress.
say() { printf '%s%s:%s %s\n' "$c_dim" "$me" "$c_off" "$*"; }

# What went wrong and what to do about it, one argument a line; ends the script.
die() {
    printf '%s%s: %s%s\n' "$c_red" "$me" "$1" "$c_off" >&2
    shift
    local line
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    exit 1
}

# How a user runs a command as root with his own toolchain: sudo drops PATH, and changes HOME, in which rustup and cargo look.
as_root() {
    printf '%s' "sudo env PATH=\"\$PATH\" CARGO_HOME=\"\${CARGO_HOME:-\$HOME/.cargo}\" RUSTUP_HOME=\"\${RUSTUP_HOME:-\$HOME/.rustup}\" $1"
}

# The toolchain is the one thing no script here installs: Debian's own is too old, and how to get a newer one is the owner's choice.
need_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$1/Cargo.toml")
    [ -n "${CARGO_HOME:-}" ] || CARGO_HOME="$HOME/.cargo"
    case ":$PATH:" in *":$CARGO_HOME/bin:"*) ;; *) PATH="$PATH:$CARGO_HOME/bin" ;; esac
    if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
        die "no Rust toolchain found: Rust $wanted or newer is needed (rustc and cargo)." \
            "Install it with rustup, then run this again. Debian's own rustc package is too old." \
            "If it is installed for another user, run: $(as_root "$0")"
    fi
    # A proxy of rustup that finds no toolchain of this user says so, and names no version.
    found=$(rustc --version 2>&1 | sed -n 's/^rustc \([0-9.]*\).*/\1/p') || true
    if [ -z "$found" ]; then
        die "rustc is there and does not work: $(rustc --version 2>&1 | head -n 1)" \
            "With rustup, for this user: rustup default stable." \
            "If it is installed for another user, run as that one: $(as_root "$0")"
    fi
    if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        die "Rust $found is too old: $wanted or newer is needed." "With rustup: rustup update stable"
    fi
}

# Seconds as 1m23s.
span() { local s=$1; if [ "$s" -ge 60 ]; then printf '%dm%02ds' $((s / 60)) $((s % 60)); else printf '%ds' "$s"; fi; }

# The version of gungraun that the workspace has: gungraun-runner must be of the same.
gungraun_version() { sed -n '/^name = "gungraun"$/{n;s/^version = "\(.*\)"$/\1/p}' "$1/Cargo.lock"; }
