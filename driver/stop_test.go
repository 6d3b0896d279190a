package driver

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc"
)

func TestRemoveWhenBack_PausesAfterErrorsThatComeAtOnce(t *testing.T) {
	calls := make(chan time.Time, 3)
	refuse := func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
		select {
		case calls <- time.Now():
		default:
		}
		return errors.New("refused at once")
	}
	d := New(t.Context(), testLogger())
	var err error
	d.client, err = containerd.New(filepath.Join(t.TempDir(), "none.sock"),
		containerd.WithExtraDialOpts([]grpc.DialOption{grpc.WithUnaryInterceptor(refuse)}))
	must.NoError(t, err)
	d.spawn(func() { d.removeWhenBack("c1", d.remove) })
	first := <-calls
	<-calls
	third := <-calls
	must.Greater(t, 300*time.Millisecond, third.Sub(first))
	d.Shutdown() // waits for the end of it
}
