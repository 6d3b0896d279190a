# Sourced by the scripts that test: counts what holds and says what does not.

passed=0
failed=0

check() { # WHAT EXPECTED GOT
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf '%s: expected\n%s\ngot\n%s\n' "$1" "$2" "$3" >&2
    fi
}

check_at_most() { # WHAT BOUND GOT
    if [ -n "$3" ] && [ "$3" -le "$2" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf '%s: expected at most %s, got %s\n' "$1" "$2" "$3" >&2
    fi
}
