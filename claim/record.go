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

// record is a claim as its file in the ledger holds it.
type record struct {
	// Format comes first, so that a person who opens the file sees what it is.
	Format int `json:"tranche_claim"`
	Claim
	// TokenSHA256 is all that the ledger keeps of the claim token, in hex.
	TokenSHA256 string `json:"token_sha256"`
	// Supersedes names the older claims on the same slices, which are void from the moment this record is there.
	Supersedes []string `json:"supersedes,omitempty"`
}

// held tells whether the claim belongs to a container that lives. What Released says does not matter: nothing is taken
// from under a living container.
func (r *record) held() bool { return r.Container != nil && Alive(*r.Container) }

// claim is a copy of the claim for callers to keep.
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
	return &c
}

func encodeRecord(r *record) ([]byte, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// decodeRecord reads a record, and is strict about it: acting on half a claim is worse than reporting it.
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

// noRecord says why a text is no record, of which strict reading said err.
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
		return fmt.Errorf("it holds claim %q, which its name denies", r.ID)
	case err != nil || len(sum) != 32 || idOfHash(sum) != id:
		return errors.New("the hash of its claim token does not fit its name")
	case r.GPU.UUID == "" && !r.Making() || len(r.Slices) == 0 || r.LimitBytes == 0:
		return errors.New("it lacks a GPU, slices or a limit")
	case r.Making() && r.Container != nil:
		return errors.New("it has a container although its instance by MIG is not made yet")
	}
	return r.checkMode()
}

var (
	cardField   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`"(gpu_)?uuid"\s*:\s*"([^"\\]*)"`) })
	slicesField = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`"slices"\s*:\s*\[([^\]]*)(\]?)`) })
	quoted      = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`"(?:[^"\\]|\\.)*"`) })
)

// salvageSlices reads what is left of the slices in a record that cannot be read as a whole.
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

// salvageCard reads on which GPU the claim was in a record that cannot be read as a whole: that of the MIG instance, if it
// names one.
func salvageCard(text []byte) string {
	var uuid string
	for _, field := range cardField().FindAllSubmatch(text, -1) {
		if uuid = string(field[2]); len(field[1]) > 0 {
			return uuid
		}
	}
	return uuid
}

// describeBroken says what a record that cannot be read means for the slices that it may have held.
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

// idOfFile is the claim that a file in the ledger is, going by its name: <id>.json.
func idOfFile(name string) (id string, ok bool) {
	id, ok = strings.CutSuffix(name, ".json")
	return id, ok && len(id) == idDigits && strings.Trim(id, "0123456789abcdef") == ""
}
