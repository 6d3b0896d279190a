package main

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
)

// pluginProcess is a plugin of Nomad's in a process of its own, spoken to as an agent does.
type pluginProcess struct {
	client *plugin.Client
	cmd    *exec.Cmd
}

// startPlugin starts a plugin and returns its process, and what the kind of plugin that was asked for is spoken to by.
func startPlugin(binary string, env []string, kind string, speaks plugin.Plugin, logger hclog.Logger) (*pluginProcess, any, error) {
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), env...)
	p := &pluginProcess{cmd: cmd, client: plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  base.Handshake,
		Plugins:          map[string]plugin.Plugin{base.PluginTypeBase: &base.PluginBase{}, kind: speaks},
		Cmd:              cmd,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           logger,
	})}
	raw, err := p.dispense(kind)
	if err != nil {
		p.client.Kill()
		return nil, nil, fmt.Errorf("start the plugin %s: %w", binary, err)
	}
	return p, raw, nil
}

func (p *pluginProcess) dispense(kind string) (any, error) {
	client, err := p.client.Client()
	if err != nil {
		return nil, err
	}
	return client.Dispense(kind)
}

// configure hands a plugin its configuration, as the agent does with the schema's defaults filled in.
func configure(p base.BasePlugin, config map[string]any, apiVersion string, agent *base.AgentConfig) error {
	var data []byte
	if err := base.MsgPackEncode(&data, config); err != nil {
		return err
	}
	return p.SetConfig(&base.Config{PluginConfig: data, ApiVersion: apiVersion, AgentConfig: agent})
}
