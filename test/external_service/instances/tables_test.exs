# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Instances.TablesTest do
  # It kills what all services share.
  use ExternalService.Case

  alias ExternalService.{Instances, Service}
  alias ExternalService.Instances.Tables

  # Its supervisor starts it again, when the tables it had are gone.
  defp kill(service) do
    old = Process.whereis(Tables)
    table = Service.started(service).instances
    Process.exit(old, :kill)
    eventually(fn -> Process.whereis(Tables) not in [nil, old] and :ets.info(table) == :undefined end, 100_000_000)
  end

  defp fail_at(service, key), do: ExternalService.call({service, key}, fn -> :retry end)
  defp count(service), do: Instances.count(Service.started(service))

  test "a service gets a new table when the owner of its table was killed", %{service: s} do
    start_on_clock(s, circuit_breaker: [tolerate: 0], retry: [max_attempts: 1])
    fail_at(s, 1)
    kill(s)
    assert count(s) == 0
    fail_at(s, 2)
    assert {count(s), ExternalService.state({s, 2})} == {1, :open}
  end

  test "a call that fails after that is remembered in the new table", %{service: s} do
    start_on_clock(s, circuit_breaker: [tolerate: 0], retry: [max_attempts: 1])
    fail_at(s, 1)
    ExternalService.call({s, 2}, fn -> kill(s) && :retry end)
    assert {count(s), ExternalService.state({s, 2})} == {1, :open}
  end
end
