package driver

import (
	"context"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"google.golang.org/grpc"
)

// Serve runs the driver as a plugin of the Nomad agent that started this process, and returns when the agent is done with
// it. The options are for the plugin's gRPC server.
//
// It is what Nomad's own function of the name does, and one thing more: up to Nomad 1.11 the server's side of its plugin
// protocol passes on all that a driver can do but disable_log_collection.
func Serve(d *Driver, logger hclog.Logger, options ...grpc.ServerOption) {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]plugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{Impl: d},
			base.PluginTypeDriver: drivers.NewDriverPlugin(d, logger),
		},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return plugin.DefaultGRPCServer(slices.Concat(opts, options, []grpc.ServerOption{grpc.ChainUnaryInterceptor(d.completeCapabilities)}))
		},
		Logger: logger,
	})
}

// completeCapabilities adds to the answer to Capabilities what Nomad's server leaves out of it.
func (d *Driver) completeCapabilities(ctx context.Context, request any, _ *grpc.UnaryServerInfo, answer grpc.UnaryHandler,
) (any, error) {
	response, err := answer(ctx, request)
	if r, ok := response.(*proto.CapabilitiesResponse); ok && r.GetCapabilities() != nil {
		r.Capabilities.DisableLogCollection = d.config.DisableLogCollection
	}
	return response, err
}
