package claim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/size"
)

// ErrUnknownToken is returned for a claim token that no claim in the ledger has.
var ErrUnknownToken = errors.New("no claim in the ledger has this claim token: its slices were given to a later claim, " +
	"it expired, or it never existed on this node; stop and start the job again, so that Nomad reserves anew")

// ErrUnknownClaim is returned for a claim ID that is not in the ledger.
var ErrUnknownClaim = errors.New("the ledger has no such claim: its slices were given to a later claim, it expired, " +
	"or it never existed on this node")

// HeldError is returned if slices cannot be reserved because an older claim on them is bound to a living container. Nothing
// was changed. The reservation can be retried when that container has ended.
type HeldError struct {
	// Claim is the older claim, Slices those of its slices that were requested.
	Claim  *Claim
	Slices []string
	// Mode is the requested mode; empty if none was requested.
	Mode Mode
}

func (e *HeldError) Error() string {
	if has := e.Claim.Mode.orSlice(); e.Mode != "" && e.Mode != has {
		return fmt.Sprintf("GPU %s is still in mode %s by claim %s, which %s still uses; it can be reserved in mode %s when that "+
			"has ended", e.Claim.PhysicalGPU(), has, e.Claim.ID, e.holder(), e.Mode)
	}
	return fmt.Sprintf("slices %s are held by claim %s, which %s still uses; they can be reserved when it has ended",
		ListNames(e.Slices), e.Claim.ID, e.holder())
}

func (e *HeldError) holder() string {
	if e.Claim.Making() {
		return "a process that makes its MIG instance"
	}
	if e.Claim.Container == nil && e.Claim.Owner == OwnerExternal {
		return "a container that is being started"
	}
	return describeHolder(e.Claim.Container)
}

// Retriable reports that the same call may succeed later.
func (e *HeldError) Retriable() bool { return true }

// BoundError is returned if a claim cannot be bound to a container because another living container has it.
type BoundError struct {
	Claim     *Claim
	Container Container
}

func (e *BoundError) Error() string {
	return fmt.Sprintf("claim %s cannot be given to container %s: %s has it and still runs; "+
		"a claim is for one container at a time, so ask for slices of its own for this one",
		e.Claim.ID, ShortID(e.Container.ID), describeHolder(e.Claim.Container))
}

// Retriable reports that the same call may succeed later, when the other container has ended.
func (e *BoundError) Retriable() bool { return true }

// AccessError is returned if the ledger or a region could not be read or written: another process held the lock for too long,
// or the disk or its file system failed. Whether the claim exists is not known.
type AccessError struct{ err error }

func (e *AccessError) Error() string { return e.err.Error() }
func (e *AccessError) Unwrap() error { return e.err }

// Retriable reports that the same call may succeed later.
func (e *AccessError) Retriable() bool { return true }

// Lasts reports whether that takes an operator.
func (e *AccessError) Lasts() bool {
	return slices.ContainsFunc([]error{unix.ENOTDIR, unix.EISDIR, unix.EROFS, unix.EACCES, unix.EPERM, unix.ELOOP, unix.ENAMETOOLONG},
		func(permanent error) bool { return errors.Is(e.err, permanent) })
}

// accessError marks an error as one of access; nil stays nil.
func accessError(err error) error {
	if err == nil {
		return nil
	}
	return &AccessError{err}
}

// countSlices returns a number of slices in words.
func countSlices(count int) string {
	if count == 1 {
		return "1 slice"
	}
	return fmt.Sprintf("%d slices", count)
}

// ListNames lists names in a message: of many the first few and how many more there are, since a GPU has up to thousands of
// slices, and of a long one its beginning.
func ListNames(names []string) string {
	const shown, longest = 8, 128
	list := slices.Clone(names[:min(shown, len(names))])
	for i, name := range list {
		if len(name) > longest {
			list[i] = strings.ToValidUTF8(name[:longest], "") + "…"
		}
	}
	text := strings.Join(list, ", ")
	if len(names) > shown {
		text += fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return text
}

// ShortID returns as much of a container's ID as engines show, which is unique and which they accept: of Docker's and Podman's IDs, 64
// hexadecimal digits, the first 12.
func ShortID(id string) string {
	if len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" {
		return id[:12]
	}
	return id
}

func describeHolder(c *Container) string {
	if c == nil {
		return "a process that is not known to the ledger"
	}
	return fmt.Sprintf("container %s (%s, process %d)", ShortID(c.ID), c.Runtime, c.InitPID)
}

// NoRoomError is returned if no GPU has as many free slices as were requested. Nothing was changed.
type NoRoomError struct {
	LimitBytes, SliceBytes uint64
	Rooms                  []Room
}

func (e *NoRoomError) Error() string {
	rooms := slices.SortedFunc(slices.Values(e.Rooms), func(x, y Room) int { return cmp.Compare(x.GPU.Index, y.GPU.Index) })
	var most, largest uint64
	var all []string
	for _, room := range rooms {
		most, largest = max(most, room.freeBytes()), max(largest, uint64(room.Slices)*room.SliceBytes)
		all = append(all, e.describe(room))
	}
	text := fmt.Sprintf("no GPU has %s free in slices of %s: %s; ", size.Format(e.LimitBytes), size.Format(e.SliceBytes), ListNames(all))
	otherMode := slices.ContainsFunc(rooms, func(r Room) bool { return r.Mode != "" })
	switch {
	case e.LimitBytes > largest && !otherMode:
		text += fmt.Sprintf("the largest has %s: ask for less", size.Format(largest))
	case most == 0:
		text += "wait until a container ends"
	default:
		text += fmt.Sprintf("at most %s fits now, so ask for that, or wait until a container ends", size.Format(most))
	}
	return text
}

func (e *NoRoomError) describe(room Room) string {
	text := fmt.Sprintf("GPU %d", room.GPU.Index)
	if room.Mode != "" {
		return text + fmt.Sprintf(" is still in mode %s", room.Mode)
	}
	text += fmt.Sprintf(" has %d of %s free", len(room.Free), countSlices(room.Slices))
	if room.SliceBytes != e.SliceBytes {
		text += " of " + size.Format(room.SliceBytes)
	}
	return text
}

// Retriable reports that the same call may succeed later.
func (e *NoRoomError) Retriable() bool { return true }

// SliceSizeError is returned if a claim's slices have another size than the caller's.
type SliceSizeError struct {
	Claim      *Claim
	SliceBytes uint64
}

func (e *SliceSizeError) Error() string {
	return fmt.Sprintf("claim %s has slices of %s on GPU %s, and slice_memory is %s here: it has to be the same in the "+
		"device plugin's options and in Tranche's configuration file; if it was changed, end the claims of the old size "+
		"(tranche claim list, tranche claim release)", e.Claim.ID, size.Format(e.Claim.SliceSize()),
		e.Claim.GPU.UUID, size.Format(e.SliceBytes))
}
