package region

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

// FuzzLimit reads the beginning of a limit file. What is one, is the same when it is written again.
func FuzzLimit(f *testing.F) {
	f.Add(encodeLimit(testHeader)[:256])
	f.Add([]byte(limitMagic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, start []byte) {
		page := make([]byte, LimitSize)
		copy(page, start)
		h, err := decodeLimit(page)
		if err != nil {
			return
		}
		again, err := decodeLimit(encodeLimit(h))
		must.NoError(t, err)
		must.Eq(t, h, again)
	})
}

// FuzzUsage reads a region whose usage file a container has written from some place on, and one of whose processes lives.
func FuzzUsage(f *testing.F) {
	f.Add(uint32(0), encodeUsage(testHeader.ClaimID)[:512], true)
	f.Add(uint32(offUsageSums), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, true)
	f.Add(uint32(offUsageHighWater), []byte{0, 0x10}, true)
	f.Add(uint32(headerSize), []byte("\xff\xff\xff\xff\xff\xff\xff\x7f"), false)
	dir := filepath.Join(f.TempDir(), "0badcafe")
	must.NoError(f, Create(dir, testHeader))
	whole, err := os.ReadFile(filepath.Join(dir, UsageFile))
	must.NoError(f, err)
	file, err := os.OpenFile(filepath.Join(dir, UsageFile), os.O_RDWR, 0)
	must.NoError(f, err)
	f.Cleanup(func() { _ = file.Close() })
	f.Fuzz(func(t *testing.T, from uint32, noise []byte, living bool) {
		at := int(from % UsageSize)
		noise = noise[:min(len(noise), UsageSize-at)]
		_, err := file.WriteAt(noise, int64(at))
		must.NoError(t, err)
		if living {
			process{t, file}.hold(0)
		}
		u, err := Read(dir)
		if err == nil {
			must.Eq(t, testHeader.LimitBytes, u.LimitBytes)
			must.LessEq(t, SlotCount, len(u.Processes))
		}
		inUse, err := InUse(dir)
		must.NoError(t, err)
		must.True(t, inUse || !living)
		_, err = file.WriteAt(whole[at:at+len(noise)], int64(at))
		must.NoError(t, err)
	})
}
