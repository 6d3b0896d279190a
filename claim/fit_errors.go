package claim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim/memsize"
)

// NoRoomError is returned if no GPU has as many free slices as were requested. Nothing was changed.
type NoRoomError struct {
	LimitBytes, SliceBytes uint64
	Rooms                  []Room
}

func (e *NoRoomError) Error() string {
	rooms := slices.SortedFunc(slices.Values(e.Rooms), func(x, y Room) int { return cmp.Compare(x.GPU.Index, y.GPU.Index) })
	var most uint64
	var all, dormant []string
	for _, room := range rooms {
		most = max(most, room.freeBytes())
		dormant = append(dormant, room.Dormant...)
		all = append(all, e.describe(room))
	}
	text := fmt.Sprintf("no GPU has %s free in slices of %s: %s; ", memsize.Format(e.LimitBytes),
		memsize.Format(e.SliceBytes), strings.Join(all, ", "))
	if most == 0 {
		text += "wait until a container ends"
	} else {
		text += fmt.Sprintf("at most %s fits now, so ask for that, or wait until a container ends", memsize.Format(most))
	}
	return text + describeDormant(dormant)
}

func (e *NoRoomError) describe(room Room) string {
	text := fmt.Sprintf("GPU %d (%s, %s)", room.GPU.Index, room.GPU.Name, room.GPU.UUID)
	if room.Mode != "" {
		return text + fmt.Sprintf(" is still in mode %s", room.Mode)
	}
	text += fmt.Sprintf(" has %d of %d slices free", len(room.Free), room.Slices)
	if room.SliceBytes != e.SliceBytes {
		text += " of " + memsize.Format(room.SliceBytes)
	}
	return text
}

// Retriable reports that the same call may succeed later.
func (e *NoRoomError) Retriable() bool { return true }

// describeDormant describes how to free the slices of dormant claims.
func describeDormant(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return "; Nomad may restart the tasks of the claims " + ListNames(ids) +
		", which keep their slices for that: `tranche claim release ID` gives up one whose job is gone"
}

// SliceSizeError is returned if a claim's slices have another size than the caller's.
type SliceSizeError struct {
	Claim      *Claim
	SliceBytes uint64
}

func (e *SliceSizeError) Error() string {
	return fmt.Sprintf("claim %s has slices of %s on GPU %s, and slice_memory is %s here: it has to be the same in the "+
		"device plugin's options and in Tranche's configuration file; if it was changed, end the claims of the old size "+
		"(tranche claim list, tranche claim release)", e.Claim.ID, memsize.Format(e.Claim.SliceSize()),
		e.Claim.GPU.UUID, memsize.Format(e.SliceBytes))
}
