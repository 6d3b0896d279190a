package region

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Header is what a region says about its claim.
type Header struct {
	ClaimID      string
	GPUUUID      string
	LimitBytes   uint64
	ContextBytes uint64
	// SpillBytes is how much may be allocated beyond the limit as managed memory that lives on the host.
	SpillBytes uint64
	// UncountedBytes is what the claim's processes hold beyond what they count; it takes from the limit.
	UncountedBytes uint64
}

// ReadHeader reads what the region in dir says about its claim, and checks both files for being what they should be. It
// returns the header also with the error that the usage file is damaged or missing.
func ReadHeader(dir string) (Header, error) {
	h, usage, err := openBoth(dir)
	if err != nil {
		return h, err
	}
	usage.Close()
	return h, nil
}

// openBoth reads the header, and leaves the usage file open.
func openBoth(dir string) (Header, *os.File, error) {
	limit, err := open(dir, LimitFile, false)
	if err != nil {
		return Header{}, nil, err
	}
	defer limit.Close()
	page := make([]byte, LimitSize)
	if err := readStart(limit, page); err != nil {
		return Header{}, nil, err
	}
	h, err := decodeLimit(page)
	if err != nil {
		return Header{}, nil, fmt.Errorf("region file %s: %w", limit.Name(), err)
	}

	usage, err := openUsage(dir, h.ClaimID)
	return h, usage, err
}

// openUsage opens the usage file of a claim's region.
func openUsage(dir, claimID string) (*os.File, error) {
	f, err := open(dir, UsageFile, false)
	if err != nil {
		return nil, err
	}
	if err := checkUsage(f, claimID); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// open opens a file of the region. The files are ours, but a link or a pipe in their place must not lead anywhere.
func open(dir, name string, writable bool) (*os.File, error) {
	flags := os.O_RDONLY
	if writable {
		flags = os.O_RDWR
	}
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the region: %w", err)
	}
	want := int64(LimitSize)
	if name == UsageFile {
		want = UsageSize
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("region file %s: %w", path, err)
	case !info.Mode().IsRegular():
		err = fmt.Errorf("region file %s: it is no regular file (%s)", path, info.Mode().Type())
	case info.Size() != want:
		err = fmt.Errorf("region file %s: it is %d bytes long, not %d: it was truncated or is none of ours",
			path, info.Size(), want)
	default:
		return f, nil
	}
	f.Close()
	return nil, err
}

func readStart(f *os.File, buf []byte) error {
	if n, err := f.ReadAt(buf, 0); err != nil {
		return fmt.Errorf("reading region file %s: %w after %d bytes", f.Name(), err, n)
	}
	return nil
}

func (h Header) check() error {
	if id, err := hex.DecodeString(h.ClaimID); err != nil || len(id) != claimIDBytes/2 {
		return fmt.Errorf("claim ID %q: it has to be %d hex digits", h.ClaimID, claimIDBytes)
	}
	if h.GPUUUID == "" || len(h.GPUUUID) >= gpuUUIDBytes || strings.ContainsRune(h.GPUUUID, 0) {
		return fmt.Errorf("GPU UUID %q: it has to be 1 to %d bytes long", h.GPUUUID, gpuUUIDBytes-1)
	}
	return nil
}

func encodeLimit(h Header) []byte {
	page := make([]byte, LimitSize)
	encodeStart(page, limitMagic, LimitSize, h.ClaimID)
	copy(page[offLimitGPUUUID:offLimitGPUUUID+gpuUUIDBytes], h.GPUUUID)
	binary.LittleEndian.PutUint64(page[offLimitLimitBytes:], h.LimitBytes)
	binary.LittleEndian.PutUint64(page[offLimitContextBytes:], h.ContextBytes)
	binary.LittleEndian.PutUint64(page[offLimitSpillBytes:], h.SpillBytes)
	binary.LittleEndian.PutUint64(page[offLimitUncounted:], h.UncountedBytes)
	return page
}

func decodeLimit(page []byte) (Header, error) {
	if err := checkStart(page, limitMagic, LimitSize); err != nil {
		return Header{}, err
	}
	uuid, _, _ := bytes.Cut(page[offLimitGPUUUID:offLimitGPUUUID+gpuUUIDBytes], []byte{0})
	h := Header{
		ClaimID:        string(page[offClaimID : offClaimID+claimIDBytes]),
		GPUUUID:        string(uuid),
		LimitBytes:     binary.LittleEndian.Uint64(page[offLimitLimitBytes:]),
		ContextBytes:   binary.LittleEndian.Uint64(page[offLimitContextBytes:]),
		SpillBytes:     binary.LittleEndian.Uint64(page[offLimitSpillBytes:]),
		UncountedBytes: binary.LittleEndian.Uint64(page[offLimitUncounted:]),
	}
	return h, h.check()
}

// encodeUsage gives the page of totals; the slots after it begin as zeros.
func encodeUsage(claimID string) []byte {
	page := make([]byte, headerSize)
	encodeStart(page, usageMagic, UsageSize, claimID)
	binary.LittleEndian.PutUint32(page[offUsageSlotCount:], SlotCount)
	binary.LittleEndian.PutUint32(page[offUsagePageShift:], pageShift)
	return page
}

func checkUsage(f *os.File, claimID string) error {
	page := make([]byte, offUsageSums)
	if err := readStart(f, page); err != nil {
		return err
	}
	if err := checkStart(page, usageMagic, UsageSize); err != nil {
		return fmt.Errorf("region file %s: %w", f.Name(), err)
	}
	if id := string(page[offClaimID : offClaimID+claimIDBytes]); id != claimID {
		return fmt.Errorf("region file %s: it belongs to claim %q, not to %s", f.Name(), id, claimID)
	}
	slots := binary.LittleEndian.Uint32(page[offUsageSlotCount:])
	shift := binary.LittleEndian.Uint32(page[offUsagePageShift:])
	if slots != SlotCount || shift != pageShift {
		return fmt.Errorf("region file %s: it has %d slots and pages of 2^%d bytes, not %d and 2^%d",
			f.Name(), slots, shift, SlotCount, pageShift)
	}
	return nil
}

func encodeStart(page []byte, magic string, size uint32, claimID string) {
	copy(page[offMagic:], magic)
	binary.LittleEndian.PutUint32(page[offVersion:], Version)
	binary.LittleEndian.PutUint32(page[offSize:], size)
	copy(page[offClaimID:offClaimID+claimIDBytes], claimID)
}

func checkStart(page []byte, magic string, size uint32) error {
	if got := string(page[offMagic : offMagic+magicBytes]); got != magic {
		return fmt.Errorf("it begins with %q, not %q: it is none of ours or was overwritten", got, magic)
	}
	if v := binary.LittleEndian.Uint32(page[offVersion:]); v != Version {
		return fmt.Errorf("it has version %d of the layout, and this program knows version %d: "+
			"use programs and shadow libraries of the same release", v, Version)
	}
	if s := binary.LittleEndian.Uint32(page[offSize:]); s != size {
		return fmt.Errorf("it says that it is %d bytes long, not %d", s, size)
	}
	return nil
}
