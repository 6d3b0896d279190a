//go:build race

package region

// The race detector's atomic loads are functions in C. Where one of these touches a page that a container has truncated away, Go
// cannot make a panic of it, and the process ends. An aligned load of a word is whole without them.

//go:norace
//go:noinline
func load64(word *uint64) uint64 { return *word }

//go:norace
//go:noinline
func load32(word *uint32) uint32 { return *word }
