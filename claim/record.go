package claim

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// recordFormat is the version of the records' format.
const recordFormat = 1

// record is the content of a claim's file in the ledger.
type record struct {
	// Format comes first, so that a person who opens the file sees what it is.
	Format int `json:"tranche_claim"`
	Claim
	// TokenSHA256 is the hash of the claim token, in hex. The ledger does not have the token.
	TokenSHA256 string `json:"token_sha256"`
	// Supersedes are the IDs of older claims on the same slices, which are void as soon as this record exists.
	Supersedes []string `json:"supersedes,omitempty"`
}

// held reports whether a living container has the claim, whatever Released is: nothing is taken from a living container.
func (r *record) held() bool { return r.Container != nil && Alive(*r.Container) }

// claim returns a copy of the claim for callers.
func (r *record) claim() *Claim {
	c := r.Claim
	c.Slices = append([]string(nil), r.Slices...)
	if r.Starter != nil {
		starter := *r.Starter
		c.Starter = &starter
	}
	if r.Container != nil {
		container := *r.Container
		c.Container = &container
	}
	if r.MIG != nil {
		mig := *r.MIG
		c.MIG = &mig
	}
	if r.MPS != nil {
		mps := *r.MPS
		c.MPS = &mps
	}
	if r.Compute != nil {
		compute := *r.Compute
		c.Compute = &compute
	}
	return &c
}

func encodeRecord(r *record) ([]byte, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// decodeRecord decodes a record strictly: to use half a claim would be worse than to report it.
func decodeRecord(id string, text []byte) (*record, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	r := new(record)
	err := d.Decode(r)
	if err == nil {
		if _, after := d.Token(); after != io.EOF {
			err = errors.New("something follows it")
		}
	}
	if err != nil || r.Format != recordFormat {
		return nil, noRecord(text, err)
	}
	r.Mode = r.Mode.orSlice()
	return r, r.check(id)
}

// noRecord returns why a text is not a record, given the error of strict decoding.
func noRecord(text []byte, err error) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return errors.New("it is empty")
	}
	var version struct {
		Format int `json:"tranche_claim"`
	}
	if err := json.Unmarshal(text, &version); err != nil {
		return fmt.Errorf("it is truncated or no claim (%w)", err)
	}
	if version.Format != recordFormat {
		return fmt.Errorf("its format is %d, and this program knows format %d", version.Format, recordFormat)
	}
	return fmt.Errorf("it is no claim as this program writes them (%w)", err)
}

func (r *record) check(id string) error {
	sum, err := hex.DecodeString(r.TokenSHA256)
	switch {
	case r.ID != id:
		return fmt.Errorf("it has claim %q, unlike its file name", r.ID)
	case err != nil || len(sum) != 32 || idOfHash(sum) != id:
		return errors.New("the hash of its claim token does not match its file name")
	case r.GPU.UUID == "" && !r.Making() || len(r.Slices) == 0 || r.LimitBytes == 0:
		return errors.New("it lacks a GPU, slices or a limit")
	case r.Making() && r.Container != nil:
		return errors.New("it has a container although its MIG instance is not created yet")
	}
	return r.checkMode()
}

var (
	cardField   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`"(gpu_)?uuid"\s*:\s*"([^"\\]*)"`) })
	slicesField = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`"slices"\s*:\s*\[([^\]]*)(\]?)`) })
	quoted      = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`"(?:[^"\\]|\\.)*"`) })
)

// salvageSlices returns the slices that can be read in a broken record.
func salvageSlices(text []byte) (slices []string, complete bool) {
	field := slicesField().FindSubmatch(text)
	if field == nil {
		return nil, false
	}
	for _, q := range quoted().FindAll(field[1], -1) {
		if s, err := strconv.Unquote(string(q)); err == nil {
			slices = append(slices, s)
		}
	}
	return slices, len(field[2]) > 0
}

// salvageCard returns the GPU that can be read in a broken record: of a MIG instance, the physical GPU.
func salvageCard(text []byte) string {
	var uuid string
	for _, field := range cardField().FindAllSubmatch(text, -1) {
		if uuid = string(field[2]); len(field[1]) > 0 {
			return uuid
		}
	}
	return uuid
}

// describeBroken describes the effect of a broken record on the slices that it may have.
func describeBroken(reason error, slices []string, complete bool) string {
	var held string
	switch {
	case complete:
		held = "It held the slices " + ListNames(slices) + "."
	case len(slices) > 0:
		held = "It held at least the slices " + ListNames(slices) + "; the list is cut off."
	default:
		held = "Which slices it held cannot be told."
	}
	return fmt.Sprintf("%s. %s Its container, if it still runs, keeps its limit, but can't be restarted in place, and "+
		"slices that can't be told are not kept from others. Remove the file when that container has ended", reason, held)
}

// idOfFile returns the claim ID in the name of a record's file, <id>.json.
func idOfFile(name string) (id string, ok bool) {
	id, ok = strings.CutSuffix(name, ".json")
	return id, ok && len(id) == idDigits && strings.Trim(id, "0123456789abcdef") == ""
}
