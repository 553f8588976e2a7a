defmodule Demo.Weather do
  @moduledoc """
  The module an application would write: a client of an HTTP service that knows how to fail.

  `call/1` comes from `use ExternalService`. It runs the function, and again if that answers `{:retry, reason}`. When
  more than 80 attempts fail within a second, the breaker opens and calls are refused without trying, until `reset` is
  over: a second too, unless the demo is shortened.
  """

  @max_attempts 3

  use ExternalService,
    circuit_breaker: [tolerate: 80, within: 1_000, reset: Demo.Pace.ms(1_000)],
    retry: [base: 10, max_attempts: @max_attempts, jitter: true]

  @http_options [connect_timeout: 200, timeout: 500, autoredirect: false, ssl: []]

  @doc """
  Asks the service at `url` for today's weather. Runs `on_attempt` before each attempt, so that the demo can count them.
  """
  def today(url, on_attempt) do
    call(fn ->
      on_attempt.()

      case get(url) do
        {:ok, {{_version, 200, _phrase}, _headers, body}} -> {:ok, body}
        {:ok, {{_version, status, _phrase}, _headers, _body}} -> {:retry, {:status, status}}
        {:error, reason} -> {:retry, reason}
      end
    end)
  end

  @doc "Returns how many attempts a call makes that fails throughout."
  def max_attempts, do: @max_attempts

  # One connection for each request: a kept one would hide that the server is gone.
  defp get(url) do
    request = {String.to_charlist(url), [{~c"connection", ~c"close"}]}
    :httpc.request(:get, request, @http_options, [body_format: :binary], :demo)
  end
end
