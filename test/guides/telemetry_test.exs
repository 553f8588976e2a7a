# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Guides.TelemetryTest do
  # The guide attaches Insights, of which there is one.
  use ExternalService.Case, async: false

  doctest ExternalService.Documents.Telemetry

  # The rows of the table of events: name => {measurements, metadata, metadata that is there sometimes}.
  defp listed do
    rows =
      Regex.scan(~r/^\| `(\[:\w+(?:, :\w+)?\])` \| [^|]+ \| ([^|]*) \| ([^|]*)\|$/m, File.read!("guides/telemetry.md"))

    for [_, name, measurements, metadata] <- rows, into: %{} do
      [always | sometimes] = String.split(metadata, ";")
      {event, _binding} = Code.eval_string(name)
      {event, {keys(measurements), Enum.sort([:service | keys(always)]), keys(Enum.join(sometimes))}}
    end
  end

  defp keys(cell), do: for([_, key] <- Regex.scan(~r/`(\w+)`/, cell), do: String.to_atom(key)) |> Enum.sort()

  defp ended(fun) do
    fun.()
  rescue
    RuntimeError -> :raised
  end

  # Makes each event happen at least once.
  defp everything(service) do
    for fun <- [fn -> :retry end, fn -> :fine end, fn -> raise "no" end] do
      clock = start_on_clock(service, circuit_breaker: [tolerate: 0, reset: 10, half_open: true])
      ended(fn -> ExternalService.call(service, [base: 0, max_attempts: 2], fun) end)
      VirtualClock.advance(clock, 10)
      ended(fn -> ExternalService.call(service, fn -> :fine end) end)
    end

    for wait <- [false, 60_000] do
      start_on_clock(service, rate_limit: [limit: 1, per: 1_000, wait: wait])
      for _ <- 1..2, do: ExternalService.call(service, fn -> :fine end)
    end

    clock = start_on_clock(service, timeout: 1, fallback: {:value, 1}, retry: [max_attempts: 1])
    ExternalService.call(service, fn -> VirtualClock.advance(clock, 1) && receive(do: (:never -> :ok)) end)
    start_on_clock(service, retry: [base: 0, max_attempts: 20, budget: [ratio: 0, min_per_second: 0]])
    ExternalService.call(service, fn -> :retry end)

    for wait <- [false, 100] do
      start_on_clock(service, concurrency: [limit: 1, wait: wait, reclaim_after: 50])
      ExternalService.call(service, fn -> ExternalService.call(service, fn -> :fine end) end)
    end
  end

  test "the table has every event" do
    names = for [:external_service | name] <- Telemetry.events(), do: name
    assert Enum.sort(Map.keys(listed())) == Enum.sort(names)
  end

  test "the table has the measurements and metadata that each event carries", %{service: s} do
    listed = listed()
    Recorder.attach(s, Map.keys(listed))
    everything(s)

    seen =
      for {name, measurements, metadata} <- Recorder.events() do
        {told, always, sometimes} = listed[name]
        {some, rest} = metadata |> Map.keys() |> Enum.split_with(&(&1 in sometimes))
        assert {name, Enum.sort(Map.keys(measurements)), Enum.sort(rest)} == {name, told, always}
        {name, some}
      end

    assert Enum.uniq(for {name, _some} <- seen, do: name) |> Enum.sort() == Enum.sort(Map.keys(listed))
    for {name, {_told, _always, [_ | _] = sometimes}} <- listed, do: assert({name, sometimes} in seen)
  end
end
