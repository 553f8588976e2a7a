# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.StandIn do
  @moduledoc """
  A circuit breaker backend that decides nothing: it answers what the test told it and reports each callback to the
  test as `{:backend, callback}`.

  Backend options: `report_to`, the test's pid (default: the process that starts the service), and `blown`, a switch
  that makes it answer `:blown` once it is on.
  """

  @behaviour ExternalService.CircuitBreaker

  @doc "The `backend` option for a stand-in that reports to the calling process."
  def backend(options \\ []), do: {__MODULE__, Keyword.put(options, :report_to, self())}

  @doc "A switch for the `blown` option: off."
  def switch, do: :atomics.new(1, [])

  @doc "Makes the stand-in answer `:blown` from now on."
  def blow(switch), do: :atomics.put(switch, 1, 1)

  @doc "How often the callback was called since last asked."
  def count(callback) do
    receive do
      {:backend, ^callback} -> 1 + count(callback)
    after
      0 -> 0
    end
  end

  @impl true
  def install(service, options) do
    report_to = Keyword.get(options, :report_to, self())
    send(report_to, {:installed, service, options})
    {:ok, %{report_to: report_to, blown: options[:blown] || switch()}}
  end

  @impl true
  def ask(_service, config) do
    report(config, :ask)
    if :atomics.get(config.blown, 1) == 1, do: :blown, else: :ok
  end

  @impl true
  def melt(_service, config), do: report(config, :melt)

  @impl true
  def reset(_service, config) do
    :atomics.put(config.blown, 1, 0)
    report(config, :reset)
  end

  @impl true
  def remove(_service, config), do: report(config, :remove)

  defp report(config, callback) do
    send(config.report_to, {:backend, callback})
    :ok
  end
end
