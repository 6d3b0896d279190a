package mps

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/tranche-gpu/tranche/device/nvml"
)

// earlierMode is the compute mode that a GPU had before.
type earlierMode struct {
	Was nvml.ComputeMode `json:"was"`
}

// takeOver lets only one process compute on a GPU, which is the daemon's server. What was before is noted first, so that
// it can be put back in whatever life.
func (m *Manager) takeOver(ctx context.Context, uuid string) error {
	now, err := m.computeMode(ctx, uuid)
	if err != nil {
		return err
	}
	noted := m.Owns(uuid)
	if !noted {
		if err := writeJSON(m.dirs(uuid).computeMode(), earlierMode{Was: m.was(uuid, now)}); err != nil {
			return err
		}
	}
	if now == nvml.ComputeExclusiveProcess {
		return m.remember(uuid)
	}
	if err := m.options.GPUs.SetComputeMode(ctx, uuid, nvml.ComputeExclusiveProcess); err != nil {
		if !noted {
			_ = os.Remove(m.dirs(uuid).computeMode())
		}
		return fmt.Errorf("let programs at the GPU through MPS only: %w", err)
	}
	m.options.Logger.Info("set the compute mode of a GPU", "gpu", uuid, "mode", nvml.ComputeExclusiveProcess.String(), "was", now.String())
	return m.remember(uuid)
}

// remember keeps in mind what is noted, for when somebody removes the file.
func (m *Manager) remember(uuid string) error {
	var earlier earlierMode
	if err := readJSON(m.dirs(uuid).computeMode(), &earlier); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.earlier[uuid] = earlier.Was
	return nil
}

// was is the compute mode from before, as far as it is remembered; now otherwise.
func (m *Manager) was(uuid string, now nvml.ComputeMode) nvml.ComputeMode {
	m.mu.Lock()
	defer m.mu.Unlock()
	if was, known := m.earlier[uuid]; known {
		return was
	}
	return now
}

// giveBack puts back the compute mode, unless somebody else has changed it.
func (m *Manager) giveBack(ctx context.Context, uuid string) error {
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
		return fmt.Errorf("put back the compute mode %s: %w", earlier.Was, err)
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
		return 0, errors.New("the GPU " + uuid + " does not tell its compute mode, so that nothing would keep programs from getting past MPS")
	}
	return *health.ComputeMode, nil
}
