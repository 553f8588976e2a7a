# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Instances.TablesTest do
  # It kills what all services share.
  use ExternalService.Case

  alias ExternalService.{Instances, Service}
  alias ExternalService.Instances.Tables

  # Its supervisor starts it again; its tables may outlive it by a moment.
  defp kill(service) do
    old = Process.whereis(Tables)
    Process.exit(old, :kill)
    eventually(fn -> Process.whereis(Tables) not in [nil, old] end)
    eventually(fn -> :ets.info(Service.started(service).instances) == :undefined end, 10_000_000)
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
