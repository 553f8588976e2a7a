# A server dies and comes back, and its clients do not notice more than they must. Run it with `make demo`, or with
#
#     mix run examples/demo.exs
#
# What an application would write is in demo/weather.exs; the rest is the stage around it.

for file <- ~w(pace weather flaky_server scoreboard screen) do
  Code.require_file("demo/#{file}.exs", __DIR__)
end

defmodule Demo do
  alias Demo.{FlakyServer, Pace, Scoreboard, Screen, Weather}

  @clients 20
  @ticks [healthy: 7, failing: 9, dead: 16, back: 12]

  @doc "Runs the demo. Returns `:ok`, or what went wrong."
  def run do
    start_inets()
    {:ok, _} = :inets.start(:httpc, profile: :demo)
    :ok = :httpc.set_options([max_sessions: 0, max_keep_alive_length: 0], :demo)
    {:ok, supervisor} = Supervisor.start_link([FlakyServer, Weather], strategy: :one_for_one)

    board = play()
    Screen.summary(board, @clients, Weather.max_attempts())

    Supervisor.stop(supervisor)
    ExternalService.stop(Weather)
    :inets.stop(:httpc, :demo)
    verdict(board)
  end

  # From Elixir 1.15 on, Mix hides the parts of OTP that mix.exs does not name.
  defp start_inets do
    if function_exported?(Mix, :ensure_application!, 1) do
      for app <- [:ssl, :inets], do: apply(Mix, :ensure_application!, [app])
    end

    {:ok, _} = Application.ensure_all_started(:inets)
  end

  defp play do
    board = Scoreboard.start()
    url = FlakyServer.url()
    clients = for _ <- 1..@clients, do: Task.async(fn -> client(url, board) end)
    {:ok, timer} = :timer.send_interval(Pace.ms(250), :tick)

    Screen.header()
    Enum.reduce(@ticks, Scoreboard.totals(board), &phase(board, &1, &2))

    {:ok, :cancel} = :timer.cancel(timer)
    Scoreboard.enter(board, :over)
    Task.await_many(clients)
    Scoreboard.stop()
    board
  end

  defp phase(board, {phase, ticks}, totals) do
    Screen.caption(phase)
    Scoreboard.enter(board, phase)
    FlakyServer.behave(if phase == :back, do: :healthy, else: phase)
    Enum.reduce(1..ticks, totals, fn _tick, before -> tick(board, before) end)
  end

  defp tick(board, before) do
    receive do: (:tick -> :ok)
    now = Scoreboard.totals(board)
    Screen.row(board, Weather.state(), before, now)
    now
  end

  defp client(url, board) do
    unless Scoreboard.phase(board) == :over do
      Weather.today(url, fn -> Scoreboard.count(board, :attempts) end)
      Process.sleep(50 + :rand.uniform(100))
      client(url, board)
    end
  end

  defp verdict(board) do
    cond do
      Scoreboard.count_of(board, :dead, :opened) == 0 ->
        {:error, "The breaker did not open while the server was dead."}

      Scoreboard.recovery_ms(board) == nil ->
        {:error, "The breaker did not recover: no call succeeded after the server's return."}

      true ->
        :ok
    end
  end
end

with {:error, message} <- Demo.run() do
  IO.puts(:stderr, message)
  exit({:shutdown, 1})
end
