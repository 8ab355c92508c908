"""Messages of the C library and of bash in other languages, with their English texts.

The wording is that of the message catalogues of glibc, bash and coreutils.
"""

from __future__ import annotations

import re

_MESSAGES = {
    "command not found": (
        "Kommando nicht gefunden", "Befehl nicht gefunden", "commande introuvable", "commande non trouvée",
        "orden no encontrada", "no se encontró la orden", "comando non trovato", "comando não encontrado",
        "opdracht niet gevonden", "nie znaleziono polecenia", "příkaz nenalezen", "команда не найдена",
        "未找到命令", "找不到命令",
        "コマンドが見つかりません", "komut yok", "명령어를 찾을 수 없음", "명령을 찾을 수 없습니다",
    ),
    "No such file or directory": (
        "Datei oder Verzeichnis nicht gefunden", "Aucun fichier ou dossier de ce nom",
        "Aucun fichier ou dossier de ce type",
        "No existe el archivo o el directorio", "No existe el fichero o el directorio",
        "File o directory non esistente",
        "Arquivo ou diretório inexistente", "Ficheiro ou diretoria inexistente", "Bestand of map bestaat niet",
        "Nie ma takiego pliku ani katalogu", "Adresář nebo soubor neexistuje", "Нет такого файла или каталога",
        "没有那个文件或目录", "そのようなファイルやディレクトリはありません", "Böyle bir dosya ya da dizin yok",
        "그런 파일이나 디렉터리가 없습니다",
    ),
    "Permission denied": (
        "Keine Berechtigung", "Permission non accordée", "Permiso denegado", "Permesso negato", "Permissão negada",
        "Toegang geweigerd", "Brak dostępu", "Přístup odmítnut", "Отказано в доступе", "权限不够", "許可がありません",
        "허가 거부",
    ),
    "No space left on device": (
        "Auf dem Gerät ist kein Speicherplatz mehr verfügbar", "Aucun espace disponible sur le périphérique",
        "No queda espacio en el dispositivo", "Spazio esaurito sul device", "Não há espaço disponível no dispositivo",
        "Não há espaço livre no dispositivo", "Brak miejsca na urządzeniu", "Na zařízení není volné místo",
        "На устройстве не осталось свободного места", "设备上没有空间", "デバイスに空き領域がありません",
        "장치에 남은 공간이 없음",
    ),
    "Disk quota exceeded": (
        "Der zugewiesene Plattenplatz (Quota) ist überschritten", "Débordement du quota d'espace disque",
        "Se ha excedido la cuota de disco", "Superata la quota disco", "Quota de disco excedida",
        "Превышена дисковая квота", "超出磁盘限额", "ディスク使用量制限を超過しました",
    ),
    "Cannot allocate memory": (
        "Nicht genügend Hauptspeicher verfügbar", "Ne peut allouer de la mémoire", "Impossible d'allouer de la mémoire",
        "No se pudo asignar memoria", "Impossibile allocare memoria", "Não foi possível alocar memória",
        "Невозможно выделить память", "无法分配内存", "メモリを確保できません",
    ),
    "Segmentation fault": (
        "Speicherzugriffsfehler", "Erreur de segmentation", "Violación de segmento", "Errore di segmentazione",
        "Falha de segmentação", "Segmenteringsfout", "Naruszenie ochrony pamięci", "Ошибка сегментирования", "段错误",
    ),
    "Killed ": (
        "Getötet ", "Processus arrêté ", "Tué ", "Terminado (killed) ", "Ucciso ", "Убито ", "已杀死 ", "強制終了 ",
    ),
    "unbound variable": (
        "ist nicht gesetzt", "variable sans liaison", "variable sin asignar", "variabile non assegnata",
        "variável não associada", "не заданная переменная", "未绑定的变量", "为绑定变量",
    ),
    "syntax error": (
        "Syntaxfehler", "erreur de syntaxe", "error sintáctico", "errore di sintassi", "erro de sintaxe",
        "синтаксическая ошибка", "语法错误", "構文エラー",
    ),
    "Address already in use": (
        "Die Adresse wird bereits verwendet", "Adresse déjà utilisée", "La dirección ya se está usando",
        "Адрес уже используется", "地址已在使用", "アドレスは既に使用中です",
    ),
    "Connection refused": (
        "Verbindungsaufbau abgelehnt", "Connexion refusée", "Conexión rehusada", "Connessione rifiutata",
        "В соединении отказано", "拒绝连接", "接続を拒否されました",
    ),
    "Lmod has detected the following error": (
        "Lmod hat den folgenden Fehler erkannt", "Lmod a détecté l'erreur suivante",
        "Lmod ha detectado el siguiente error",
    ),
    "unknown: ": ("unbekannt: ", "inconnus : ", "desconocidos: "),
    "Stale file handle": ("Veraltete Dateizugriffsnummer", "Poignée de fichier obsolète", "过旧的文件控柄"),
    "bad interpreter": ("Defekter Interpreter", "mauvais interpréteur", "intérprete erróneo", "解释器错误"),
}  # fmt: skip
_FOREIGN = [(foreign, english) for english, texts in _MESSAGES.items() for foreign in texts]
_PLACE = re.compile(r"\b(?:Zeile|ligne|línea|riga|linha|regel|linia|строка|行)\s?(\d+)\s?:|第\s?(\d+)\s?行[:：]")


def translate(text: str) -> str:
    """Return a line with known messages in English; the line itself if it contains none."""
    # French writes a space before the colon.
    found = [(foreign, english) for foreign, english in _FOREIGN if foreign in text]
    for foreign, english in found:
        text = text.replace(foreign, english)
    return _PLACE.sub(lambda place: f"line {place[1] or place[2]}:", text).replace(" :", ":") if found else text
