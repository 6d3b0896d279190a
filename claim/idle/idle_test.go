package idle

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

func TestReport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	none, err := Read(dir)
	must.NoError(t, err)
	must.Eq(t, Report{}, none)

	c := &claim.Claim{ID: "aaaaaaaa", Container: &claim.Container{ID: "c", InitStartTime: 1}}
	since := time.Unix(1_800_000_000, 0).UTC()
	stop := since.Add(time.Hour)
	said := Report{Claims: map[string]Condition{c.ID: {State: Warned, Container: c.ContainerKey(), Since: since, StopAt: &stop}}, Stops: []time.Time{since}}
	must.NoError(t, Write(dir, said))
	read, err := Read(dir)
	must.NoError(t, err)
	must.Eq(t, said, read)
	condition, found := read.Of(c)
	must.True(t, found)
	must.Eq(t, "idle since 2027-01-15 08:00:00 UTC: its group is stopped at 2027-01-15 09:00:00 UTC unless it uses the GPU", condition.String())
	c.Container.InitStartTime = 2
	_, found = read.Of(c)
	must.False(t, found, must.Sprint("another container of the same name"))
}

func TestRead_Damaged(t *testing.T) {
	for content, want := range map[string]string{`{"tranche_idle": 1, "cl`: "unexpected end", `{"tranche_idle": 2}`: "its format is 2"} {
		dir := t.TempDir()
		must.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(content), 0o644))
		_, err := Read(dir)
		must.ErrorContains(t, err, want)
		must.ErrorContains(t, err, "restart tranche-agent")
	}
}
