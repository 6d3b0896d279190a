package removal

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc"

	"github.com/tranche-gpu/tranche/driver/client"
)

func TestWhenBack_PausesAfterErrorsThatComeAtOnce(t *testing.T) {
	calls := make(chan time.Time, 3)
	refuse := func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
		select {
		case calls <- time.Now():
		default:
		}
		return errors.New("refused at once")
	}
	c, err := client.New(t.Context(), client.Config{Address: filepath.Join(t.TempDir(), "none.sock")},
		containerd.WithExtraDialOpts([]grpc.DialOption{grpc.WithUnaryInterceptor(refuse)}))
	must.NoError(t, err)
	r := &Remover{Client: c, Logger: hclog.NewNullLogger()}
	c.Go(func() { r.whenBack("c1", r.Remove) })
	first := <-calls
	<-calls
	third := <-calls
	must.Greater(t, 300*time.Millisecond, third.Sub(first))
	must.NoError(t, c.Close()) // waits for the end of it
}
