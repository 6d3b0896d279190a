package mps

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/tranche-gpu/tranche/device/nvml"
)

// earlierMode is the file with the compute mode that a GPU had before.
type earlierMode struct {
	Was nvml.ComputeMode `json:"was"`
}

// setExclusive lets only one process compute on a GPU, which is the daemon's server. The earlier mode is recorded first, so
// that a later plugin process can restore it.
func (m *Manager) setExclusive(ctx context.Context, uuid string) error {
	now, err := m.computeMode(ctx, uuid)
	if err != nil {
		return err
	}
	recorded := m.Owns(uuid)
	if !recorded {
		if err := writeJSON(m.dirs(uuid).computeMode(), earlierMode{Was: m.was(uuid, now)}); err != nil {
			return err
		}
	}
	if now == nvml.ComputeExclusiveProcess {
		return m.cacheEarlier(uuid)
	}
	if err := m.options.GPUs.SetComputeMode(ctx, uuid, nvml.ComputeExclusiveProcess); err != nil {
		if !recorded {
			_ = os.Remove(m.dirs(uuid).computeMode())
		}
		return fmt.Errorf("set the compute mode of the GPU for MPS: %w", err)
	}
	m.options.Logger.Info("set the compute mode of a GPU", "gpu", uuid, "mode", nvml.ComputeExclusiveProcess.String(), "was", now.String())
	return m.cacheEarlier(uuid)
}

// cacheEarlier caches the recorded mode, in case somebody removes the file.
func (m *Manager) cacheEarlier(uuid string) error {
	var earlier earlierMode
	if err := readJSON(m.dirs(uuid).computeMode(), &earlier); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.earlier[uuid] = earlier.Was
	return nil
}

// was returns the cached earlier compute mode; the current one if there is none.
func (m *Manager) was(uuid string, now nvml.ComputeMode) nvml.ComputeMode {
	m.mu.Lock()
	defer m.mu.Unlock()
	if was, known := m.earlier[uuid]; known {
		return was
	}
	return now
}

// restoreComputeMode restores the earlier compute mode, unless somebody else has changed it.
func (m *Manager) restoreComputeMode(ctx context.Context, uuid string) error {
	if !m.Owns(uuid) {
		return nil
	}
	var earlier earlierMode
	if err := readJSON(m.dirs(uuid).computeMode(), &earlier); err != nil {
		return err
	}
	now, err := m.computeMode(ctx, uuid)
	if err == nil && now == nvml.ComputeExclusiveProcess && earlier.Was != now {
		err = m.options.GPUs.SetComputeMode(ctx, uuid, earlier.Was)
	}
	if err != nil {
		return fmt.Errorf("restore the compute mode %s: %w", earlier.Was, err)
	}
	m.mu.Lock()
	delete(m.earlier, uuid)
	m.mu.Unlock()
	return os.Remove(m.dirs(uuid).computeMode())
}

func (m *Manager) computeMode(ctx context.Context, uuid string) (nvml.ComputeMode, error) {
	health, err := m.options.GPUs.Health(ctx, uuid)
	if err != nil {
		return 0, err
	}
	if health.ComputeMode == nil {
		return 0, errors.New("the compute mode of the GPU " + uuid + " is unknown, so that programs could not be kept from computing without MPS")
	}
	return *health.ComputeMode, nil
}
