package gpuinfo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tranche-gpu/tranche/internal/filelock"
)

// lockPatience is how long another process's query of NVML is waited for.
const lockPatience = time.Minute

// lock lets one process at a time query NVML. If many containers start at once without cached files, NVML is queried once,
// and the others read the answer. The function that it returns unlocks.
func (p Place) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	if err := os.MkdirAll(p.RunDir, 0o755); err != nil {
		return nil, err
	}
	unlock, err = filelock.New(filepath.Join(p.RunDir, "node.lock"), lockPatience).Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for another process to query NVML: %w", err)
	}
	return unlock, nil
}
