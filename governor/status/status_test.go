package status

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

func TestStatus(t *testing.T) {
	runDir := filepath.Join(t.TempDir(), "run")
	read, err := Read(runDir)
	must.NoError(t, err)
	must.Nil(t, read)
	_, err = Current(runDir, time.Now())
	must.ErrorContains(t, err, "no governor has run since this node was booted")

	now := time.Unix(1_700_000_000, 0).UTC()
	said := Status{
		Written: now,
		GPUs:    map[string]GPU{"GPU-1": {SwitchNS: 60_000, Joined: []string{"0badcafe"}}},
		Claims: map[string]Claim{"0badcafe": {
			GPUUUID: "GPU-1", Compute: claim.Compute{Share: 300, Max: 500, Class: claim.ClassHigh}, GPUSeconds: 12.5, RecentPart: 0.31,
			WaitingSeconds: 3, Overruns: 2, Joined: []Process{{4711, "python3"}}, NotJoined: []Process{{4712, "a.out"}},
		}},
	}
	must.NoError(t, Write(runDir, said))
	read, err = Read(runDir)
	must.NoError(t, err)
	must.Eq(t, &said, read)
	read, err = Current(runDir, now.Add(StaleAfter))
	must.NoError(t, err)
	must.Eq(t, &said, read)
	_, err = Current(runDir, now.Add(StaleAfter+1))
	must.ErrorContains(t, err, "no governor has run since 2023-11-14T22:13:20Z")
	must.ErrorIs(t, err, ErrNotRunning)

	must.NoError(t, os.WriteFile(filepath.Join(runDir, Dir, FileName), []byte(`{"tranche_governor": 2}`), 0o644))
	_, err = Read(runDir)
	must.ErrorContains(t, err, "its format is 2")
	must.ErrorContains(t, err, "restart the governor")

	must.NoError(t, os.Remove(filepath.Join(runDir, Dir, FileName)))
	must.NoError(t, os.Mkdir(filepath.Join(runDir, Dir, FileName), 0o755))
	_, err = Current(runDir, now)
	must.ErrorContains(t, err, "is a directory: remove it; restart the governor")
	must.ErrorContains(t, Write(runDir, said), filepath.Join(runDir, Dir, FileName)+": it is a directory: remove it")
}
