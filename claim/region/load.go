//go:build !race

package region

import "sync/atomic"

func load64(word *uint64) uint64 { return atomic.LoadUint64(word) }

func load32(word *uint32) uint32 { return atomic.LoadUint32(word) }
