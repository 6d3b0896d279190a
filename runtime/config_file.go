package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/percent"
	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime/compute"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// ConfigEnv names the environment variable, of tranche-runtime itself, with the path of its configuration file.
const ConfigEnv = "TRANCHE_CONFIG"

// DefaultConfigFile is read if ConfigEnv is not set. It may be missing.
const DefaultConfigFile = "/etc/tranche/config.toml"

// configFile is the configuration file of the node, key by key: that of tranche-runtime, which the commands of tranche follow.
type configFile struct {
	DriverRoot  string   `toml:"driver_root"`
	ShadowDir   string   `toml:"shadow_dir"`
	HookPath    string   `toml:"hook_path"`
	CLIPath     string   `toml:"cli_path"`
	StateDir    string   `toml:"state_dir"`
	RunDir      string   `toml:"run_dir"`
	CDISpecDirs []string `toml:"cdi_spec_dirs"`
	Runtime     string   `toml:"runtime"`
	Runtimes    []string `toml:"runtimes"`

	WithoutClaim     string `toml:"without_claim"`
	GPUHostMemoryMax string `toml:"gpu_host_memory_max"`

	GPUComputeMaxShare     float64 `toml:"gpu_compute_max_share"`
	GPUComputeHighPriority bool    `toml:"gpu_compute_high_priority"`

	SliceMemory        string `toml:"slice_memory"`
	Enforcement        string `toml:"enforcement"`
	LocalClaims        string `toml:"local_claims"`
	DriverCapabilities string `toml:"driver_capabilities"`

	// Settings of other programs, whose mistakes must not keep a container from starting: see usage/bill and agent/policy.
	Usage          any `toml:"usage"`
	Prices         any `toml:"prices"`
	Idle           any `toml:"idle"`
	NomadAddress   any `toml:"nomad_address"`
	NomadTokenFile any `toml:"nomad_token_file"`
	NomadCAFile    any `toml:"nomad_ca_file"`
}

// LoadConfig reads the configuration file of the node. An empty path means the default file. With an error it returns what
// containers without a GPU need: the runtimes and directories that could be read, and the defaults of all else.
func LoadConfig(path string) (Config, error) {
	named := path != ""
	if !named {
		path = DefaultConfigFile
	}
	content, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return Config{}.WithDefaults(), nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; correct %s or create the file", err, ConfigEnv)
	}
	if err != nil {
		return Config{}.WithDefaults(), fmt.Errorf("read the configuration: %w", err)
	}
	defer content.Close()

	var file configFile
	err = toml.NewDecoder(content).DisallowUnknownFields().Decode(&file)
	if err != nil {
		return file.remains(), fmt.Errorf("read the configuration %s: %w", path, explainTOML(err))
	}
	cfg, err := file.config()
	if err != nil {
		return file.remains(), fmt.Errorf("read the configuration %s: %w", path, err)
	}
	return cfg, nil
}

// remains returns what is used of a file with a mistake.
func (f configFile) remains() Config {
	c := Config{Runtime: f.Runtime, Runtimes: f.Runtimes}
	if filepath.IsAbs(f.StateDir) {
		c.StateDir = f.StateDir
	}
	if filepath.IsAbs(f.RunDir) {
		c.RunDir = f.RunDir
	}
	return c.WithDefaults()
}

// config checks the settings.
func (f configFile) config() (Config, error) {
	cfg := Config{
		Node: edit.Node{
			DriverRoot:         f.DriverRoot,
			ShadowDir:          f.ShadowDir,
			HookPath:           f.HookPath,
			CLIPath:            f.CLIPath,
			StateDir:           f.StateDir,
			RunDir:             f.RunDir,
			CDISpecDirs:        f.CDISpecDirs,
			DriverCapabilities: f.DriverCapabilities,
		},
		Runtime:      f.Runtime,
		Runtimes:     f.Runtimes,
		WithoutClaim: f.WithoutClaim,
		Compute:      compute.Bounds{HighPriority: f.GPUComputeHighPriority},
	}.WithDefaults()
	err := cfg.validate()
	if err == nil && f.GPUHostMemoryMax != "" {
		if cfg.GPUHostMemoryMaxBytes, err = size.Parse(f.GPUHostMemoryMax); err != nil {
			err = fmt.Errorf("gpu_host_memory_max: %w", err)
		}
	}
	if err == nil && f.GPUComputeMaxShare != 0 {
		if cfg.Compute.MaxShare, err = percent.FromNumber(f.GPUComputeMaxShare); err != nil {
			err = fmt.Errorf("gpu_compute_max_share %w", err)
		}
	}
	if err == nil {
		err = cfg.readRequestSettings(f)
	}
	return cfg, err
}

// explainTOML names the wrong key or line.
func explainTOML(err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		var keys []string
		for _, missing := range unknown.Errors {
			keys = append(keys, strings.Join(missing.Key(), "."))
		}
		return fmt.Errorf("there is no setting called %s; examples/config.toml describes all", strings.Join(keys, " or "))
	}
	var syntax *toml.DecodeError
	if errors.As(err, &syntax) {
		line, column := syntax.Position()
		if key := strings.Join(syntax.Key(), "."); key != "" {
			return fmt.Errorf("line %d: %s has a value of the wrong type: gpu_compute_max_share is a number, gpu_compute_high_priority "+
				"is true or false, runtimes and cdi_spec_dirs are lists, and all else is text in quotes", line, key)
		}
		return fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	return err
}

// validate refuses unknown values, and relative paths, which would depend on the working directory.
func (c Config) validate() error {
	switch c.WithoutClaim {
	case WithoutClaimDeny, WithoutClaimVoid, WithoutClaimPass:
	default:
		return fmt.Errorf("without_claim = %q: it may be %q, %q or %q",
			c.WithoutClaim, WithoutClaimDeny, WithoutClaimVoid, WithoutClaimPass)
	}
	paths := map[string]string{
		"driver_root": c.DriverRoot,
		"shadow_dir":  c.ShadowDir,
		"hook_path":   c.HookPath,
		"cli_path":    c.CLIPath,
		"state_dir":   c.StateDir,
		"run_dir":     c.RunDir,
	}
	for _, dir := range c.CDISpecDirs {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("cdi_spec_dirs: %q is not an absolute path", dir)
		}
	}
	for _, setting := range []string{"driver_root", "shadow_dir", "hook_path", "cli_path", "state_dir", "run_dir"} {
		if !filepath.IsAbs(paths[setting]) {
			return fmt.Errorf("%s: %q is not an absolute path", setting, paths[setting])
		}
	}
	return edit.CheckDriverCapabilities(c.DriverCapabilities)
}

// readRequestSettings reads the settings for containers that request a fraction of a GPU without a scheduler.
func (c *Config) readRequestSettings(file configFile) (err error) {
	if c.LocalClaims, err = request.ParsePolicy(file.LocalClaims); err != nil {
		return fmt.Errorf("local_claims: %w", err)
	}
	if c.Enforcement, err = claim.ParseEnforcement(file.Enforcement); err != nil {
		return err
	}
	if file.SliceMemory == "" {
		return nil
	}
	if c.SliceBytes, err = size.ParseGPU(file.SliceMemory); err != nil {
		return fmt.Errorf("slice_memory: %w", err)
	}
	if c.SliceBytes < minSliceBytes {
		return fmt.Errorf("slice_memory must be at least %s, got %q", size.Format(minSliceBytes), file.SliceMemory)
	}
	return nil
}
