package bill

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"

	"github.com/tranche-gpu/tranche/usage"
)

// focusColumns are columns of FOCUS 1.2: all mandatory ones, and those that apply to what a claim reserves.
var focusColumns = []string{
	"BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
	"ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
	"ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName",
	"ListCost", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
	"ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory",
	"SkuId", "SkuMeter", "SkuPriceId", "SubAccountId", "SubAccountName", "Tags",
}

// sku is what is sold.
type sku struct {
	id, meter, unit string
	price           *big.Rat
	quantity        *big.Rat
}

// Focus writes usage as CSV with the columns of FOCUS 1.2: a row for each hour, claim and price.
func Focus(ctx context.Context, s *usage.Store, q usage.Query, p Prices, out io.Writer) error {
	if !p.Known() {
		return errors.New("there are no prices: set currency, and gib_hour, gpu_hour or both, in the table [prices] of Tranche's configuration file")
	}
	w := csv.NewWriter(out)
	_ = w.Write(focusColumns) // Flush keeps the error
	err := s.Lines(ctx, q, func(l usage.Line) error {
		for _, item := range p.skus(l) {
			row, err := focusRow(l, item, p)
			if err != nil {
				return err
			}
			cells := make([]string, 0, len(focusColumns))
			for _, column := range focusColumns {
				cells = append(cells, row[column])
			}
			_ = w.Write(cells)
		}
		return nil
	})
	w.Flush()
	return errors.Join(err, w.Error())
}

// skus returns what of a line has a price.
func (p Prices) skus(l usage.Line) []sku {
	var items []sku
	if p.GiBHour != nil {
		items = append(items, sku{"gpu-memory", "Reserved GPU memory", "GiB-Hours", p.GiBHour, gibHours(l.Bytes, l.ReservedMillis)})
	}
	if p.GPUHour != nil && l.Share >= 0 {
		items = append(items, sku{"gpu-time", "Reserved share of a GPU", "GPU-Hours", p.GPUHour, gpuHours(l.Share, l.ReservedMillis)})
	}
	return items
}

func focusRow(l usage.Line, item sku, p Prices) (map[string]string, error) {
	month := time.Date(l.Hour.Year(), l.Hour.Month(), 1, 0, 0, 0, 0, time.UTC)
	cost := decimal(new(big.Rat).Mul(item.price, item.quantity), focusDigits)
	quantity, price := decimal(item.quantity, focusDigits), decimal(item.price, focusDigits)
	tags, err := json.Marshal(focusTags(l))
	if err != nil {
		return nil, err
	}
	name := l.Job
	if !l.OfNomad() {
		name = l.ContainerName
	}
	return map[string]string{
		"BilledCost": cost, "ContractedCost": cost, "EffectiveCost": cost, "ListCost": cost,
		"ListUnitPrice": price, "ContractedUnitPrice": price, "BillingCurrency": p.Currency,
		"BillingAccountId": cell(p.Account), "BillingAccountName": cell(p.Account), "InvoiceIssuerName": cell(p.Provider),
		"ProviderName": cell(p.Provider), "PublisherName": cell(p.Provider),
		"BillingPeriodStart": focusTime(month), "BillingPeriodEnd": focusTime(month.AddDate(0, 1, 0)),
		"ChargePeriodStart": focusTime(l.Hour), "ChargePeriodEnd": focusTime(l.Hour.Add(time.Hour)),
		"ChargeCategory": "Usage", "ChargeFrequency": "Usage-Based", "PricingCategory": "Standard",
		"ChargeDescription": fmt.Sprintf("%s of claim %s, mode %s", item.meter, l.ClaimID, l.Mode),
		"ConsumedQuantity":  quantity, "ConsumedUnit": item.unit, "PricingQuantity": quantity, "PricingUnit": item.unit,
		"ResourceId":      fmt.Sprintf("%s-%d", l.ClaimID, l.Created.UnixMilli()),
		"ResourceName":    cell(name),
		"ResourceType":    "GPU claim",
		"ServiceCategory": "Compute", "ServiceSubcategory": "Other (Compute)", "ServiceName": "GPU",
		"SkuId": item.id, "SkuMeter": item.meter, "SkuPriceId": item.id + "-" + decimal(item.price, focusDigits),
		"SubAccountId": cell(l.Namespace), "SubAccountName": cell(l.Namespace),
		"Tags": string(tags),
	}, nil
}

// focusDigits is how many digits after the point costs have, which are summed up by others.
const focusDigits = 12

func focusTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

func focusTags(l usage.Line) map[string]string {
	tags := map[string]string{
		"node": l.Node, "gpu_uuid": l.GPU.UUID, "gpu_model": l.GPU.Model, "job": l.Job, "parent_job": l.ParentJob, "group": l.Group, "task": l.Task,
		"allocation": l.Allocation, "container": l.ContainerName,
	}
	for name, value := range tags {
		if value == "" {
			delete(tags, name)
		}
	}
	if l.OfNomad() && !l.Verified {
		tags["unverified"] = "true"
	}
	return tags
}
